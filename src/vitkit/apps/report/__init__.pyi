from .function import WrittenReport as WrittenReport
from .function import report as report
