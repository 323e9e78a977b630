from .active_learning import next_to_label as next_to_label
from .function import Checked as Checked
from .function import Labelled as Labelled
from .function import label as label
