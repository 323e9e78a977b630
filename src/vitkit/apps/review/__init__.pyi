from .function import Applied as Applied
from .function import Reviewed as Reviewed
from .function import review as review
