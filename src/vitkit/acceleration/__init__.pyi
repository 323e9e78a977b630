"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.acceleration.bodies import Arithmetic as Arithmetic
from vitkit.acceleration.bodies import Body as Body
from vitkit.acceleration.bodies import Shape as Shape
from vitkit.acceleration.figures import HEADER as HEADER
from vitkit.acceleration.figures import cells as cells
from vitkit.acceleration.figures import draw as draw
from vitkit.acceleration.figures import write_page as write_page
from vitkit.acceleration.heads import Head as Head
from vitkit.acceleration.heads import head_of as head_of
from vitkit.acceleration.losses import Judge as Judge
from vitkit.acceleration.losses import Judged as Judged
from vitkit.acceleration.losses import Loss as Loss
from vitkit.acceleration.losses import on_others as on_others
from vitkit.acceleration.pareto import Line as Line
from vitkit.acceleration.pareto import Point as Point
from vitkit.acceleration.races import LIBRARIES as LIBRARIES
from vitkit.acceleration.races import Wanted as Wanted
from vitkit.acceleration.searching import Found as Found
from vitkit.acceleration.searching import check as check
from vitkit.acceleration.searching import search as search
from vitkit.acceleration.subjects import Subject as Subject
from vitkit.acceleration.subjects import of_data as of_data
from vitkit.acceleration.subjects import of_run as of_run
from vitkit.acceleration.writing import ending_of as ending_of
from vitkit.acceleration.writing import library_of as library_of
from vitkit.acceleration.writing import write as write
