"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.quick.candidates import CLOSED_FORM as CLOSED_FORM
from vitkit.quick.candidates import best as best
from vitkit.quick.candidates import candidate as candidate
from vitkit.quick.candidates import head_on as head_on
from vitkit.quick.candidates import question as question
from vitkit.quick.candidates import solved as solved
from vitkit.quick.candidates import targets_of as targets_of
from vitkit.quick.fine_tuning import RUN as RUN
from vitkit.quick.first_model import guess as guess
from vitkit.quick.from_folder import Answer as Answer
from vitkit.quick.from_folder import answer as answer
from vitkit.quick.from_folder import measured_by as measured_by
from vitkit.quick.head_inputs import TOKEN as TOKEN
from vitkit.quick.head_inputs import kinds_for as kinds_for
from vitkit.quick.head_inputs import part_of as part_of
from vitkit.quick.head_inputs import shared_products as shared_products
from vitkit.quick.head_inputs import widest_of as widest_of
from vitkit.quick.plan import OtherPlan as OtherPlan
from vitkit.quick.plan import read_plan as read_plan
from vitkit.quick.record import check_recorded as check_recorded
from vitkit.quick.record import is_quick as is_quick
from vitkit.quick.record import weakest_class as weakest_class
from vitkit.quick.record import write_page as write_page
