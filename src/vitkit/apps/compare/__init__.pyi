from .function import ComparedModels as ComparedModels
from .function import ComparedRuns as ComparedRuns
from .function import compare as compare
