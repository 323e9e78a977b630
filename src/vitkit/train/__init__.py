"""Recipe -> resolve -> train: one loop, whatever the objective."""

from vitkit.train.autoencoder import MaskedAutoencoder
from vitkit.train.distillation import SelfDistillation
from vitkit.train.log import last_metrics
from vitkit.train.loop import train
from vitkit.train.masked import MaskedPatches
from vitkit.train.objectives import Supervised
from vitkit.train.optim import Optim
from vitkit.train.recipe import Data, Facts, Recipe, resolve
from vitkit.train.run import Interrupted, write_json
from vitkit.train.span import Span
from vitkit.train.tune import Tune

__all__ = [
    "Data",
    "Facts",
    "Interrupted",
    "MaskedAutoencoder",
    "MaskedPatches",
    "Optim",
    "Recipe",
    "SelfDistillation",
    "Span",
    "Supervised",
    "Tune",
    "last_metrics",
    "resolve",
    "train",
    "write_json",
]
