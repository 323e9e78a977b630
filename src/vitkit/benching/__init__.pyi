"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.benching.candidates import Contender as Contender
from vitkit.benching.candidates import contenders as contenders
from vitkit.benching.candidates import is_good as is_good
from vitkit.benching.candidates import is_worth_measuring as is_worth_measuring
from vitkit.benching.candidates import of_exported as of_exported
from vitkit.benching.candidates import of_timm as of_timm
from vitkit.benching.candidates import with_less_work as with_less_work
from vitkit.benching.figures import draw as draw
from vitkit.benching.measuring import MEASURED as MEASURED
from vitkit.benching.measuring import PHOTOGRAPH as PHOTOGRAPH
from vitkit.benching.measuring import Plan as Plan
from vitkit.benching.measuring import Speed as Speed
from vitkit.benching.measuring import measure as measure
from vitkit.benching.measuring import measure_starts as measure_starts
from vitkit.benching.measuring import remember as remember
