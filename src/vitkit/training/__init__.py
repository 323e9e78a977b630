"""Recipe -> resolve -> train: one loop, whatever the objective."""

from vitkit.system.errors import Interrupted
from vitkit.training.log import last_metrics, primary_metric
from vitkit.training.loop import train
from vitkit.training.optim import Optim
from vitkit.training.recipe import Data, Facts, Recipe, resolve
from vitkit.training.tune import Tune

__all__ = [
    "Data",
    "Facts",
    "Interrupted",
    "Optim",
    "Recipe",
    "Tune",
    "last_metrics",
    "primary_metric",
    "resolve",
    "train",
]
