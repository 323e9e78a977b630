"""Verbs: what a command does, as a function of the same name.

The settings of a verb are one dataclass, from which the command line is made too; a program gives
them as keyword arguments. What a verb returns is a frozen value that prints itself, shows itself in a
notebook, and is a table.

    @verb
    def fewshot(settings: MeasureFewshot) -> FewshotAccuracy: ...

    vitkit.fewshot("google/vit-base-patch16-224", "photos/", shots=(1, 5))
"""

import inspect
import re
from collections.abc import Callable
from functools import cached_property, update_wrapper
from io import StringIO
from typing import TYPE_CHECKING, Any, get_type_hints

from vitkit.system.console.saying import (
    Listener,
    Progress,
    bars_are_shown,
    current_listener,
    heard_by,
    to_nobody,
)
from vitkit.system.processes.signals import leaving_signals
from vitkit.verbs.settings import Begin, options, parameters, settings_from

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

WIDTH = 100  # columns of a result as text, where there is no terminal


class Verb:
    """A function whose arguments are the fields of its settings.

    What has no default, and words such as IMAGE..., may be given by position; all others are keyword
    arguments. `quiet` says nothing while it works; `progress` is called with each sentence
    (str) and each step of a bar (Progress) instead of the standard error.
    """

    def __init__(self, run: Callable[[Any], Any], begin: "Begin | None" = None):
        self.run = run
        """The function of the settings."""
        self.begin = begin
        """What follows from the arguments that decide the others' defaults, if there are such."""
        update_wrapper(self, run)

    @cached_property
    def settings(self) -> type:
        """The class of the settings."""
        return get_type_hints(self.run)["settings"]

    @property
    def __signature__(self) -> inspect.Signature:
        """What help() and notebooks show."""
        by_name = {each.name: each for each in parameters(self.settings)}
        if self.begin:  # what has no default follows from the first ones
            first = {each.name: each for each in parameters(get_type_hints(self.begin)["first"])}
            by_name = first | {
                name: each
                for name, each in by_name.items()
                if name not in first and each.default is not inspect.Parameter.empty
            }
        ordered = sorted(by_name.values(), key=lambda each: each.kind)
        for name, default in (("quiet", False), ("progress", None)):
            kind = inspect.Parameter.KEYWORD_ONLY
            ordered.append(inspect.Parameter(name, kind, default=default))
        return inspect.Signature(ordered)

    def __call__(
        self,
        *words: Any,
        quiet: bool = False,
        progress: Listener | None = None,
        **values: Any,
    ) -> Any:
        """Do it. Raises TypeError if an argument does not exist, and whatever the verb raises: its
        sentences name arguments, where those of the command name options."""
        settings = settings_from(self.settings, self.run.__name__, words, values, self.begin)
        listener = progress or (to_nobody if quiet else current_listener())

        def in_python(told: str | Progress) -> None:
            if isinstance(told, str):
                told = arguments_for_options(told, self.settings)
            listener(told)

        in_python.shows_bars = bars_are_shown(listener)
        try:
            with heard_by(in_python), leaving_signals():
                return self.run(settings)
        except (ValueError, OSError) as error:
            if error.args and isinstance(error.args[0], str):
                sentence = arguments_for_options(error.args[0], self.settings)
                error.args = (sentence, *error.args[1:])
            raise


def verb(run: Callable[[Any], Any]) -> Verb:
    """Makes a verb of a function whose one argument is called `settings`, a dataclass."""
    return Verb(run)


def verb_that_begins(begin: Begin) -> Callable[[Callable[[Any], Any]], Verb]:
    """The same, for one whose defaults depend on some settings, such as the name of a recipe: `begin`
    has an argument `first`, a dataclass of these."""

    def decorate(run: Callable[[Any], Any]) -> Verb:
        return Verb(run, begin)

    return decorate


OPTION = re.compile(r"--(no-)?([a-z][a-z0-9.-]*[a-z0-9])(?:[ =]([0-9A-Z][\w./:-]*))?")
"""An option in a sentence, with the value or the word in capitals that may follow it."""


def arguments_for_options(sentence: str, kind: type) -> str:
    """A sentence about the options of a command, as one about the arguments of its verb: "--shots 5"
    becomes "shots=5". What is not this verb's stays, such as what other programs take."""
    names = {option.name for option in options(kind) if not option.is_word}

    def argument(match: re.Match) -> str:
        negative, name, value = match.groups()
        if name not in names:
            return match.group()
        name = name.replace("-", "_").replace(".", "__")
        if negative:
            return f"{name}=False"
        if value:
            return f"{name}={value}"
        return name

    return OPTION.sub(argument, sentence)


# What a verb returns


def result(kind: type) -> type:
    """Makes a result of a frozen dataclass with a method `shown`, which gives what its command prints:
    sentences, and tables of rich. It gets `__str__`, and HTML for notebooks; with a method `rows`,
    one dict a row, also `to_frame`. HTML of its own, with pictures, stays."""
    kind.__str__ = as_text
    if "_repr_html_" not in vars(kind):
        kind._repr_html_ = as_html
    if hasattr(kind, "rows"):
        kind.to_frame = to_frame
    return kind


def as_text(value: Any) -> str:
    """What a command prints, without colours."""
    from rich.console import Console

    console = Console(file=StringIO(), width=WIDTH)
    print_result(value, console)
    return console.file.getvalue().rstrip("\n")


def as_html(value: Any) -> str:
    """The same for a notebook."""
    from rich.console import Console

    console = Console(file=StringIO(), width=WIDTH, record=True, force_jupyter=False)
    print_result(value, console)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def print_result(value: Any, console: "Console | None" = None) -> None:  # noqa: F821
    """Print what a verb has returned, as its command does."""
    from rich.console import Console

    console = console or Console()
    for part in value.shown():
        _print(part, console)


def _print(part: "RenderableType", console: Any) -> None:
    """Print a sentence as it is, and a table as wide as there is room."""
    if isinstance(part, str):
        console.print(part, highlight=False, markup=False, soft_wrap=True)
    else:
        console.print(part)


def to_frame(value: Any) -> "pandas.DataFrame":
    """The rows as a table of pandas. Raises ImportError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_frame needs pandas: pip install pandas") from error
    return pandas.DataFrame(value.rows())
