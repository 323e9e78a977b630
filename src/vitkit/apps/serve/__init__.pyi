from .function import Ended as Ended
from .function import serve as serve
