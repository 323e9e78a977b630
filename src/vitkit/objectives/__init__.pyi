"""Written by `cd tests && python -m stubs`: for type checkers and editors."""

from vitkit.objectives.autoencoder import MaskedAutoencoder as MaskedAutoencoder
from vitkit.objectives.distillation import SelfDistillation as SelfDistillation
from vitkit.objectives.masked import MaskedPatches as MaskedPatches
from vitkit.objectives.objective import Learner as Learner
from vitkit.objectives.objective import Objective as Objective
from vitkit.objectives.objective import Unlabelled as Unlabelled
from vitkit.objectives.objective import blocks_of as blocks_of
from vitkit.objectives.supervised import Supervised as Supervised
