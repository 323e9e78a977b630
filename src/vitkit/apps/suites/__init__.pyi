from .function import SuiteTable as SuiteTable
from .function import suite as suite
