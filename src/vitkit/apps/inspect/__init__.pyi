from .function import Inspected as Inspected
from .function import inspect as inspect
