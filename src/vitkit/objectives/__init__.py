"""What a step minimises: the paper's classification and masked patch prediction, MAE and DINO."""

from vitkit.objectives.autoencoder import MaskedAutoencoder
from vitkit.objectives.distillation import SelfDistillation
from vitkit.objectives.masked import MaskedPatches
from vitkit.objectives.objective import Learner, Objective
from vitkit.objectives.supervised import Supervised

__all__ = [
    "Learner",
    "MaskedAutoencoder",
    "MaskedPatches",
    "Objective",
    "SelfDistillation",
    "Supervised",
]
