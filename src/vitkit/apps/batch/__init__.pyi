from .function import BatchState as BatchState
from .function import batch as batch
