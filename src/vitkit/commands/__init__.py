"""The commands of `vitkit`, one table. A new command is a file in this room and a line here.

Importing this imports nothing else, so that help is there at once; what a command takes and does is loaded when it is run. A
command is a function whose one argument is its settings, a dataclass: its docstring and the strings below its fields are the
help text.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A line of the table."""

    name: str
    """What is typed after `vitkit`."""
    words: str
    """What follows the name in the overview."""
    summary: str
    """What it does, in half a line."""
    action: str
    """The function that does it and returns an exit status: "file.function" of this room."""
    defaults: str = ""
    """Where its settings follow from the first words after its name: the function that reads those, "file.function"."""

    def load_action(self) -> Callable[[Any], int]:
        """The function that takes the settings."""
        return _function(self.action)

    def load_settings(self) -> type:
        """The class of its settings."""
        return next(iter(self.load_action().__annotations__.values()))

    def load_defaults(self) -> Callable[[list[str]], "Defaults"] | None:
        """The function that reads the first words; None if all settings have defaults of their own."""
        return _function(self.defaults) if self.defaults else None


class Defaults(NamedTuple):
    """What the first words after a command's name decide."""

    settings: Any
    """Every setting, at its default."""
    words: int
    """How many words that were; the rest are settings to change."""


class WordsMissing(Exception):
    """The words that a command's settings follow from are not there; the text says what to type."""


def _function(name: str) -> Callable:
    """A function of this room by "file.function"."""
    from importlib import import_module

    file, function = name.split(".")
    return getattr(import_module(f"vitkit.commands.{file}"), function)


COMMANDS = (
    Command("train", "RECIPE [--setting value]", "train a model, or continue the run that is there",
            "train.train", defaults="train.defaults"),
    Command("finetune", "MODEL DATA", "published weights on images of one's own, as the paper does",
            "finetune.finetune", defaults="finetune.defaults"),
    Command("plan", "RECIPE --gpus N", "memory, time and energy that a recipe needs; nothing is run",
            "plan.plan", defaults="plan.defaults"),
    Command("evaluate", "MODEL DATA", "accuracy of a model on images with labels", "evaluate.evaluate"),
    Command("predict", "MODEL IMAGE...", "the likeliest classes of images", "use.predict"),
    Command("show", "MODEL", "what a model is and where it came from", "weights.show"),
    Command("compare", "ONE TWO IMAGE...", "whether two models compute the same, layer by layer",
            "weights.compare"),
    Command("convert", "MODEL DEST --to FORMAT",
            "write it for Transformers, timm, torchvision or Google's code, with the proof", "weights.convert"),
    Command("push", "DIRECTORY NAME", "upload it to the Hugging Face hub", "weights.push"),
    Command("data stats", "DATA", "sizes, classes, duplicates and broken images of a data set", "data_stats.stats"),
    Command("data pack", "DATA DEST", "write it as shards, to be read from anywhere", "data_pack.pack"),
    Command("models", "", "every named model, with what it costs", "models.models"),
)  # fmt: skip

__all__ = ["COMMANDS", "Command", "Defaults", "WordsMissing"]
