"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.suites.comparison import SuiteComparison as SuiteComparison
from vitkit.suites.comparison import compare_models as compare_models
from vitkit.suites.comparison import comparison_markdown as comparison_markdown
from vitkit.suites.comparison import draw_comparison as draw_comparison
from vitkit.suites.robustness import ROBUSTNESS as ROBUSTNESS
from vitkit.suites.running import FINE_TUNING as FINE_TUNING
from vitkit.suites.running import Outcome as Outcome
from vitkit.suites.running import run_suite as run_suite
from vitkit.suites.table import cell as cell
from vitkit.suites.table import cells as cells
from vitkit.suites.table import columns as columns
from vitkit.suites.table import lines as lines
from vitkit.suites.table import markdown as markdown
from vitkit.suites.table import sentences as sentences
from vitkit.suites.task import Suite as Suite
from vitkit.suites.task import Task as Task
from vitkit.suites.task import read_suite as read_suite
from vitkit.suites.vtab import VTAB as VTAB
