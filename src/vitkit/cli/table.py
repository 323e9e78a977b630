"""The table of commands: name, arguments, summary, and the group in which the overview of `vitkit`
lists it.

A command's function is imported when the command runs, so `vitkit --help` does not import PyTorch.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from vitkit.system.functions.words import DATA, MODEL

# Smallest similarity (difflib) of a misspelt name to a name that is suggested
NEAR = 0.75
FUNCTIONS = {"models": "list_models"}  # commands whose functions have another name


class Command(NamedTuple):
    """A row of the table."""

    name: str
    """Name of the command, one or two words after `vitkit`."""
    words: str
    """Arguments, as the overview shows them."""
    summary: str
    """What the command does, as a short phrase."""
    group: str
    """Task of the command: a key of GROUPS."""
    defaults: str = ""
    """Function "module.function" that reads the first words, for a command whose defaults depend on
    them (a recipe, a model); "" for other commands."""
    narrates: bool = False
    """Whether log messages count as output of the command, such as those of a run."""

    def load_function(self) -> Callable[..., Any]:
        """Import the command's function."""
        import vitkit

        return getattr(vitkit, self.function)

    @property
    def function(self) -> str:
        """The name of the function: `stats` for "data stats", and `list_models` for "models", which
        is the name of a package."""
        last = self.name.split()[-1]
        return FUNCTIONS.get(last, last)

    def run(self, values: dict[str, Any]) -> int:
        """Call the function and print its result; returns the exit status.

        Args:
            values: The arguments by name.
        """
        import sys

        from vitkit.cli.spelling import as_command, as_options
        from vitkit.system.console.messages import (
            heard_by,
            is_first,
            printing_to,
            to_log,
            to_standard_output,
        )
        from vitkit.system.functions.results import print_result
        from vitkit.system.functions.steps import steps_as

        listener = to_standard_output if self.narrates else to_log
        with steps_as(as_command):
            with heard_by(listener), printing_to(sys.stdout):
                returned = called(self.load_function(), values)
            if is_first():
                print_result(returned, spelling=as_options)
        return returned.status

    def load_defaults(self) -> Callable[[list[str]], "Defaults"] | None:
        """Import the function that reads the first words; None if the defaults do not depend on them."""
        if not self.defaults:
            return None
        return _function(self.defaults)


def called(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Call a function without its decorators, which are for Python callers: the values are already
    parsed, and the command line handles signals."""
    from vitkit.system.functions.parameters import parameters

    function = inspect.unwrap(function)
    args = []
    named = {}
    own = inspect.signature(function).parameters
    for name, each in own.items():
        if each.kind is each.VAR_POSITIONAL:
            args += values[name]
        elif name not in values:
            continue
        elif each.kind is each.POSITIONAL_OR_KEYWORD:
            args.append(values[name])
        elif each.kind is each.KEYWORD_ONLY:
            named[name] = values[name]
    for override in parameters(function):  # only given ones go into **overrides
        is_override = override.name in values and override.name not in own
        if is_override and values[override.name] != override.default:
            named[override.name] = values[override.name]
    return function(*args, **named)


class Defaults(NamedTuple):
    """The defaults that the first words after a command's name determine."""

    settings: Mapping[str, Any] | None
    """Default arguments of the function by name; READ for arguments that the words have given. None if no
    words determine any."""
    words: int
    """Number of words that were read; the following ones change settings."""
    read: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the function that the words have given, by name."""


class WordsMissing(Exception):
    """The first words of a command are missing; the message is its usage."""


class WrongWords(Exception):
    """The command line is wrong; the message is a sentence with the correct words."""


def _function(name: str) -> Callable:
    """Import a function of this package by "module.function"."""
    from importlib import import_module

    module, function = name.split(".")
    return getattr(import_module(f"vitkit.cli.{module}"), function)


GROUPS = {
    "start": "a classifier of your own photographs",
    "look": "look at a model, or at a run",
    "measure": "measure a model",
    "ship": "use a model elsewhere, faster, or on many images",
    "data": "label photographs, and look after data",
    "research": "train, and repeat the paper",
    "machines": "machines",
}
"""The titles of the groups in the overview of `vitkit`."""
COMMANDS = (
    Command("finetune", "[MODEL] DATA",
            "make a classifier of your own photographs, in seconds and in minutes",
            "start", defaults="recipe.finetune", narrates=True),
    Command("predict", "MODEL IMAGE...",
            "print the most likely classes of images, or write them to a file",
            "start"),
    Command("sort", "MODEL PHOTOGRAPH... --into DIR",
            "sort photographs into a folder for each class",
            "start"),
    Command("segment", "MODEL IMAGE...",
            "classify every pixel: masks, overlays, the share of each class, regions",
            "start"),
    Command("app", "MODEL [OTHER]",
            "open a web page: drop a photograph, see the classes and what a model looks at",
            "start"),
    Command("inspect", "MODEL [IMAGE...]",
            "draw what a model has learned and what it looks at: the paper's figures, and a page",
            "look"),
    Command("show", "MODEL",
            "print what a model is and where it came from",
            "look"),
    Command("compare", "ONE TWO [IMAGE...]",
            "compare two runs, or two models layer by layer on images",
            "look"),
    Command("report", "RUN...",
            "write a page about a run, or compare several runs on one page",
            "look"),
    Command("evaluate", "MODEL DATA",
            "measure the accuracy of a model on images with labels",
            "measure"),
    Command("probe", "MODEL DATA",
            "fit a new head in closed form: a classifier in seconds",
            "measure"),
    Command("fewshot", "MODEL DATA...",
            "measure the accuracy of a model that learns from a few images per class",
            "measure"),
    Command("features", "MODEL DATA -o FILE",
            "write the features of images to a file, for search or clustering",
            "measure"),
    Command("suite", "SUITE MODEL --data DIR",
            "measure a model on many tasks: VTAB, robustness, or your own",
            "measure"),
    Command("export", "MODEL -o FILE",
            "write a model for ONNX Runtime, OpenVINO or PyTorch, and check its answers",
            "ship"),
    Command("convert", "MODEL DEST --to FORMAT",
            "write a model for Transformers, timm, torchvision or Google's code, and check it there",
            "ship"),
    Command("faster", "MODEL [--lose POINTS]",
            "find the fastest model that loses no more than you allow, and write it",
            "ship"),
    Command("serve", "MODEL",
            "serve a model over HTTP: batches, limits, metrics, a new model without a pause",
            "ship"),
    Command("batch", "MODEL IMAGE... --into DIR",
            "classify millions of images, in parts, with several processes",
            "ship"),
    Command("watch", "MODEL FOLDER",
            "classify the images in a folder, and those that arrive there",
            "ship"),
    Command("push", "DIRECTORY NAME",
            "upload a model to the Hugging Face hub",
            "ship"),
    Command("label", "PHOTOS [--model MODEL]",
            "sort photographs into classes, on a page: a model proposes and you confirm",
            "data"),
    Command("teach", "MODEL [DIR] --add PHOTOS...",
            "teach a model classes from a few photographs, or make it unlearn them",
            "data"),
    Command("data stats", "DATA",
            "print sizes, classes, duplicates and broken images of a data set",
            "data"),
    Command("data review", "DATA MODEL",
            "find labels that are probably wrong, duplicates and odd images",
            "data"),
    Command("data pack", "DATA DEST",
            "write a data set as shards, which can be read from anywhere",
            "data"),
    Command("train", "RECIPE [DATA]",
            "train a model by a recipe, or continue its run",
            "research", defaults="recipe.train", narrates=True),
    Command("study", "[NAME] --data DATA",
            "run one of the paper's studies on your own images: its table and its figure",
            "research", defaults="study.defaults", narrates=True),
    Command("models", "[NAME...]",
            "list every named model and its cost",
            "research"),
    Command("doctor", "",
            "print what this machine can do, what is fast, and what is missing",
            "machines"),
    Command("bench", "MODEL",
            "measure how fast a model is on this machine, in every runtime and precision",
            "machines"),
    Command("plan", "RECIPE [DATA] --gpus N",
            "count the memory, time and energy that a recipe needs; nothing is run",
            "machines", defaults="recipe.plan"),
)  # fmt: skip

__all__ = [
    "COMMANDS",
    "DATA",
    "GROUPS",
    "MODEL",
    "NEAR",
    "Command",
    "Defaults",
    "WordsMissing",
    "WrongWords",
]
