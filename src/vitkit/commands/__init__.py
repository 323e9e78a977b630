"""What each command of `vitkit` takes and does. A class is its settings, and its docstring and comments the help text."""

from collections.abc import Callable

from vitkit.commands.data import Pack, Stats, pack, stats
from vitkit.commands.finetune import Finetune, finetune
from vitkit.commands.models import Models, models
from vitkit.commands.plan import Plan, plan
from vitkit.commands.train import Train, train
from vitkit.commands.use import Evaluate, Predict, evaluate, predict
from vitkit.commands.weights import Compare, Convert, Push, Show, compare, convert, push, show

COMMANDS: dict[str, tuple[type, Callable[..., int]]] = {
    "train": (Train, train),
    "finetune": (Finetune, finetune),
    "plan": (Plan, plan),
    "evaluate": (Evaluate, evaluate),
    "predict": (Predict, predict),
    "models": (Models, models),
    "show": (Show, show),
    "compare": (Compare, compare),
    "convert": (Convert, convert),
    "push": (Push, push),
    "data pack": (Pack, pack),
    "data stats": (Stats, stats),
}

__all__ = ["COMMANDS"]
