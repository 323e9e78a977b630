"""The commands of `vitkit`, one table. A new command is a file in this room and a line in the
table.

A command is a function whose one argument is its settings, a dataclass. The docstring of the
dataclass and the strings below its fields are the help text.

Elsewhere in vitkit a table holds functions. Here it holds their names, and the file of a command is
imported when the command is run. So `vitkit --help` appears at once, without PyTorch.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from vitkit.verbs import DATA, MODEL

if TYPE_CHECKING:
    from vitkit.verbs import Verb


# Likeness of the letters of a misspelt name and of the one that is suggested: below it that is another word
NEAR = 0.75
VERBS = {"models": "list_models"}  # commands that are called otherwise in Python


class Command(NamedTuple):
    """A line of the table."""

    name: str
    """What is typed after `vitkit`."""
    words: str
    """The words that follow it, for the overview."""
    summary: str
    """What it does, in half a line."""
    action: str = ""
    """The function that does it and returns an exit status, as "file.function" of this room; empty for
    a verb of the same name, whose result is printed."""
    defaults: str = ""
    """For a command whose defaults depend on its first words (a recipe, a model): the function that
    reads those words, as "file.function"."""
    narrates: bool = False
    """Whether what a verb says while it works is the command's output too, as of a run."""

    def load_action(self) -> Callable[[Any], int]:
        """The function that takes the settings."""
        if not self.action:
            return self._print_verb
        return _function(self.action)

    def load_function(self) -> "Verb":
        """The same in Python."""
        from vitkit import verbs

        return getattr(verbs, self.verb)

    @property
    def verb(self) -> str:
        """The name of the verb: "data stats" is stats, and models, a room's name, is
        list_models."""
        last = self.name.split()[-1]
        return VERBS.get(last, last)

    def _print_verb(self, settings: Any) -> int:
        """Do it, and print what it returns. The status is 1 if that says so, as of models that are
        not the same."""
        import sys

        from vitkit.commands.spelling import as_command, as_options
        from vitkit.system.console.messages import (
            heard_by,
            is_first,
            printing_to,
            to_log,
            to_standard_output,
        )
        from vitkit.system.functions.steps import steps_as
        from vitkit.verbs import print_result

        listener = to_standard_output if self.narrates else to_log
        function = self.load_function()
        with steps_as(as_command):
            with heard_by(listener), printing_to(sys.stdout):
                if isinstance(settings, dict):
                    returned = called(function, settings)
                else:
                    returned = function.run(settings)
            if is_first():
                print_result(returned, spelling=as_options)
        return getattr(returned, "status", 0)

    def load_settings(self) -> type:
        """The class of its settings: the type of the action's argument, which is always called
        `command`, or those of the verb."""
        if not self.action:
            function = self.load_function()
            return getattr(function, "settings", function)
        return get_type_hints(self.load_action())["command"]

    def load_defaults(self) -> Callable[[list[str]], "Defaults"] | None:
        """The function that reads the first words; None if the defaults do not depend on them."""
        if not self.defaults:
            return None
        return _function(self.defaults)


def called(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """What a function returns for the values of its parameters. Its decorators are for programs: here the
    values have been read already, and signals are the command's to handle."""
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
    for each in parameters(function):  # of **overrides, those that are given
        is_override = each.name in values and each.name not in own
        if is_override and values[each.name] != each.default:
            named[each.name] = values[each.name]
    return function(*args, **named)


class Defaults(NamedTuple):
    """The defaults that follow from the first words after a command's name."""

    settings: Mapping[str, Any] | None
    """The arguments of the function by name, at their defaults; READ for those that the words have given.
    None if no words decide any."""
    words: int
    """How many words were read; those that follow change settings."""
    read: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the function that those words gave."""


class WordsMissing(Exception):
    """A command's first words are missing; the text says what to type."""


class WrongWords(Exception):
    """Words that mean nothing here; the text is a sentence that names the right ones."""


def _function(name: str) -> Callable:
    """A function of this room by "file.function"."""
    from importlib import import_module

    file, function = name.split(".")
    return getattr(import_module(f"vitkit.commands.{file}"), function)


COMMANDS = (
    Command("train", "RECIPE [DATA]",
            "train a model by a recipe, or continue its run",
            defaults="recipe.train", narrates=True),
    Command("finetune", "[MODEL] DATA",
            "make a classifier of your own photographs, in seconds and in minutes",
            defaults="recipe.finetune", narrates=True),
    Command("label", "PHOTOS [--model MODEL]",
            "sort photographs into classes, on a page: a model proposes and you confirm"),
    Command("plan", "RECIPE [DATA] --gpus N",
            "count the memory, time and energy that a recipe needs; nothing is run",
            defaults="recipe.plan"),
    Command("evaluate", "MODEL DATA",
            "measure the accuracy of a model on images with labels"),
    Command("fewshot", "MODEL DATA...",
            "measure the accuracy of a model that learns from a few images per class"),
    Command("probe", "MODEL DATA",
            "fit a new head in closed form: a classifier in seconds"),
    Command("teach", "MODEL [DIR] --add PHOTOS...",
            "teach a model classes from a few photographs, or make it unlearn them"),
    Command("suite", "SUITE MODEL --data DIR",
            "measure a model on many tasks: VTAB, robustness, or your own"),
    Command("study", "[NAME] --data DATA",
            "run one of the paper's studies on your own images: its table and its figure",
            defaults="study.defaults", narrates=True),
    Command("features", "MODEL DATA -o FILE",
            "write the features of images to a file, for search or clustering"),
    Command("predict", "MODEL IMAGE...",
            "print the most likely classes of images, or write them to a file"),
    Command("sort", "MODEL PHOTOGRAPH... --into DIR",
            "sort photographs into a folder for each class"),
    Command("watch", "MODEL FOLDER",
            "classify the images in a folder, and those that arrive there"),
    Command("batch", "MODEL IMAGE... --into DIR",
            "classify millions of images, in parts, with several processes"),
    Command("app", "MODEL [OTHER]",
            "open a web page: drop a photograph, see the classes and what a model looks at"),
    Command("serve", "MODEL",
            "serve a model over HTTP: batches, limits, metrics, a new model without a pause"),
    Command("inspect", "MODEL [IMAGE...]",
            "draw what a model has learned and what it looks at: the paper's figures, and a page"),
    Command("show", "MODEL",
            "print what a model is and where it came from"),
    Command("report", "RUN...",
            "write a page about a run, or compare several runs on one page"),
    Command("compare", "ONE TWO [IMAGE...]",
            "compare two runs, or two models layer by layer on images"),
    Command("convert", "MODEL DEST --to FORMAT",
            "write a model for Transformers, timm, torchvision or Google's code, and check it there"),
    Command("export", "MODEL -o FILE",
            "write a model for ONNX Runtime, OpenVINO or PyTorch, and check its answers"),
    Command("bench", "MODEL",
            "measure how fast a model is on this machine, in every runtime and precision"),
    Command("faster", "MODEL [--lose POINTS]",
            "find the fastest model that loses no more than you allow, and write it"),
    Command("push", "DIRECTORY NAME",
            "upload a model to the Hugging Face hub"),
    Command("data stats", "DATA",
            "print sizes, classes, duplicates and broken images of a data set"),
    Command("data pack", "DATA DEST",
            "write a data set as shards, which can be read from anywhere"),
    Command("data review", "DATA MODEL",
            "find labels that are probably wrong, duplicates and odd images"),
    Command("models", "[NAME...]",
            "list every named model and its cost"),
    Command("doctor", "",
            "print what this machine can do, what is fast, and what is missing"),
)  # fmt: skip

__all__ = ["COMMANDS", "DATA", "MODEL", "NEAR", "Command", "Defaults", "WordsMissing", "WrongWords"]
