from .function import FasterModel as FasterModel
from .function import faster as faster
