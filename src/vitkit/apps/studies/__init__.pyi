from .function import Studies as Studies
from .function import StudyTable as StudyTable
from .function import study as study
from .function import study_description as study_description
from .paper import STUDIES as STUDIES
