"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.labelling.active_learning import next_to_label as next_to_label
from vitkit.labelling.answers import Answer as Answer
from vitkit.labelling.answers import Answers as Answers
from vitkit.labelling.answers import Difference as Difference
from vitkit.labelling.answers import JOURNAL as JOURNAL
from vitkit.labelling.answers import kappa as kappa
from vitkit.labelling.checking import Check as Check
from vitkit.labelling.checking import Checking as Checking
from vitkit.labelling.directory import folder_of_sitting as folder_of_sitting
from vitkit.labelling.directory import open_for_one as open_for_one
from vitkit.labelling.directory import record_sitting as record_sitting
from vitkit.labelling.estimate import Estimate as Estimate
from vitkit.labelling.feature_thread import FeatureThread as FeatureThread
from vitkit.labelling.http import Table as Table
from vitkit.labelling.http import application as application
from vitkit.labelling.http import sentences as sentences
from vitkit.labelling.questions import Question as Question
from vitkit.labelling.saving import TakenHome as TakenHome
from vitkit.labelling.saving import save_model as save_model
from vitkit.labelling.saving import sort_into as sort_into
from vitkit.labelling.sitting import PHOTOGRAPHS as PHOTOGRAPHS
from vitkit.labelling.sitting import Sitting as Sitting
from vitkit.labelling.sitting import SittingProgress as SittingProgress
