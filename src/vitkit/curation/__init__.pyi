"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.curation.corrections import Correction as Correction
from vitkit.curation.corrections import LEAVE_OUT as LEAVE_OUT
from vitkit.curation.corrections import Move as Move
from vitkit.curation.corrections import RELABEL as RELABEL
from vitkit.curation.corrections import move as move
from vitkit.curation.corrections import moves as moves
from vitkit.curation.corrections import moves_back as moves_back
from vitkit.curation.corrections import read_corrections as read_corrections
from vitkit.curation.duplicates import Pair as Pair
from vitkit.curation.duplicates import different as different
from vitkit.curation.packing import Packed as Packed
from vitkit.curation.packing import Packing as Packing
from vitkit.curation.packing import pack as pack
from vitkit.curation.statistics import Survey as Survey
from vitkit.curation.statistics import class_counts as class_counts
from vitkit.curation.statistics import count_other_class as count_other_class
from vitkit.curation.statistics import identical_files as identical_files
from vitkit.curation.statistics import near_duplicates as near_duplicates
from vitkit.curation.statistics import repeats as repeats
from vitkit.curation.statistics import survey as survey
