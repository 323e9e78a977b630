"""Recipe -> resolve -> train: one loop, whatever the objective."""

from vitkit.system.errors import Interrupted
from vitkit.train.log import last_metrics, primary_metric
from vitkit.train.loop import train
from vitkit.train.optim import Optim
from vitkit.train.recipe import Data, Facts, Recipe, resolve
from vitkit.train.tune import Tune

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
