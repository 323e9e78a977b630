"""Verbs: what a command does, as a function of the same name.

The settings of a verb are one dataclass, from which the command line is made too; a program gives
them as keyword arguments. What a verb returns is a frozen value that prints itself, shows itself in a
notebook, and is a table.

    @verb
    def fewshot(settings: MeasureFewshot) -> FewshotAccuracy: ...

    vitkit.fewshot("google/vit-base-patch16-224", "photos/", shots=(1, 5))
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property, update_wrapper
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from vitkit.system.console.saying import (
    Listener,
    Progress,
    bars_are_shown,
    current_listener,
    heard_by,
    to_nobody,
)
from vitkit.system.processes.signals import leaving_signals
from vitkit.system.span import Span
from vitkit.verbs.settings import MISSING, bare, default_of, is_word, mark, options

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
        parameters = {each.name: each for each in _parameters(self.settings)}
        if self.begin:  # what has no default follows from the first ones
            first = {each.name: each for each in _parameters(get_type_hints(self.begin)["first"])}
            parameters = first | {
                name: each
                for name, each in parameters.items()
                if name not in first and each.default is not inspect.Parameter.empty
            }
        parameters = sorted(parameters.values(), key=lambda each: each.kind)
        for name, default in (("quiet", False), ("progress", None)):
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=default))
        return inspect.Signature(parameters)

    def __call__(
        self,
        *words: Any,
        quiet: bool = False,
        progress: Listener | None = None,
        **values: Any,
    ) -> Any:
        """Do it. Raises TypeError for an argument that there is none of, and what the verb says: its
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


Begin = Callable[[Any, frozenset[str]], Any]
"""(what decides the other defaults, the names of all settings that were given) -> all settings"""


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


def settings_from(
    kind: type,
    name: str,
    words: Sequence[Any],
    values: dict[str, Any],
    begin: "Begin | None" = None,
) -> Any:
    """The settings of a verb from the arguments of a call. Those of a part without a name of its own
    (Hints) may be given beside the others; those of a part with one after two underscores, as in
    optim__lr. Raises TypeError, with the nearest name, for one that there is none of."""
    first = get_type_hints(begin)["first"] if begin else kind
    given = _with_words(first, name, words, values)

    # What decides the other defaults
    own = {field.name for field in dataclasses.fields(first)}
    parts = {}
    for argument in list(given):
        if argument not in own and not (begin and _is_of(first, argument)):
            parts[argument] = given.pop(argument)
    settings = _made(first, name, given)
    if begin:
        settings = begin(settings, frozenset(_dotted(each) for each in (*given, *parts)))

    # The others
    for argument, value in parts.items():
        try:
            settings = _changed(settings, _dotted(argument), value)
        except KeyError:
            known = {*own, *(option.name.replace(".", "__") for option in options(kind))}
            near = get_close_matches(argument, {each.replace("-", "_") for each in known}, 1)
            question = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"vitkit.{name} has no setting {argument!r}{question}") from None
    return settings


def _with_words(
    kind: type, name: str, words: Sequence[Any], values: dict[str, Any]
) -> dict[str, Any]:
    """The values, with those that were given by position: for what was not given by name. Raises
    TypeError for too many."""
    given = dict(values)
    positional = [field.name for field in _words(kind) if field.name not in given]
    variadic = positional and _is_variadic(kind, positional[-1])
    if variadic and len(words) >= len(positional):
        last = len(positional) - 1
        words = [*words[:last], _joined(words[last:])]
    if len(words) > len(positional):
        raise TypeError(
            f"vitkit.{name} takes {' and '.join(positional) or 'nothing'} by position; the other "
            "settings by name"
        )
    return given | dict(zip(positional, words, strict=False))


def _made(kind: type, name: str, given: dict[str, Any]) -> Any:
    """Settings of these values, and the defaults of the others. Raises TypeError for a missing one."""
    types = get_type_hints(kind)
    own = {}
    parts = {}
    for argument, value in given.items():
        if argument in types:
            own[argument] = _as(types[argument], value)
        else:
            parts[argument] = value
    missing = [
        field.name
        for field in dataclasses.fields(kind)
        if field.name not in own and default_of(field, None) is MISSING
    ]
    if missing:
        raise TypeError(f"vitkit.{name} needs {' and '.join(missing)}")
    settings = kind(**own)
    for argument, value in parts.items():
        settings = _changed(settings, _dotted(argument), value)
    return settings


def _dotted(argument: str) -> str:
    """optim__lr -> optim.lr"""
    return argument.replace("__", ".")


def _is_of(kind: type, argument: str) -> bool:
    """Whether an argument is a setting of this class, or of a part of it without a name."""
    head, _, rest = argument.partition("__")
    types = get_type_hints(kind)
    if head in types:
        return not rest or dataclasses.is_dataclass(types[head])
    return any(_is_of(types[part], head) for part in _unnamed_parts(kind))


def _changed(settings: Any, name: str, value: Any) -> Any:
    """Settings with another value of one of them, such as "workdir" or "optim.lr". Raises KeyError
    for a name that there is none of."""
    head, _, rest = name.partition(".")
    kind = type(settings)
    types = get_type_hints(kind)
    if head not in types:
        for part in _unnamed_parts(kind):
            if _is_of(types[part], head):
                change = {part: _changed(getattr(settings, part), name, value)}
                return dataclasses.replace(settings, **change)
        raise KeyError(name)
    if not rest:
        return dataclasses.replace(settings, **{head: _as(types[head], value)})
    inner = getattr(settings, head)
    if not dataclasses.is_dataclass(inner):
        raise KeyError(name)
    return dataclasses.replace(settings, **{head: _changed(inner, rest, value)})


def _joined(words: Sequence[Any]) -> tuple:
    """Words of which there may be any number, whether given one by one or as one list."""
    if len(words) == 1 and isinstance(words[0], list | tuple):
        return tuple(words[0])
    return tuple(words)


def _as(annotation: Any, value: Any) -> Any:
    """A value as settings have it: paths for strings, and tuples, which cannot change, for lists."""
    if isinstance(value, list):
        value = tuple(value)
    elif get_origin(annotation) is tuple and not isinstance(value, tuple):
        value = (value,)  # one, where there may be several
    kinds = {annotation, *get_args(annotation)}
    if Path in kinds and str not in kinds:
        if isinstance(value, str):
            return Path(value)
        if isinstance(value, tuple):
            return tuple(Path(each) for each in value)
    if isinstance(value, Path) and Path not in kinds:
        return str(value)
    if Span in kinds and isinstance(value, str):
        return Span.parse(value)
    return value


def _words(kind: type) -> Iterator[dataclasses.Field]:
    """The fields that may be given by position: words, and what has no default."""
    types = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if is_word(types[field.name]) or default_of(field, None) is MISSING:
            yield field


def _is_variadic(kind: type, name: str) -> bool:
    """Whether a field takes any number of words."""
    annotation = bare(get_type_hints(kind, include_extras=True)[name])
    return getattr(annotation, "__origin__", None) is tuple


def _unnamed_parts(kind: type) -> list[str]:
    """The fields that are parts whose settings stand beside the others, as on the command line."""
    types = get_type_hints(kind, include_extras=True)
    names = []
    for field in dataclasses.fields(kind):
        annotation = types[field.name]
        if mark(annotation, "name") == "" and dataclasses.is_dataclass(bare(annotation)):
            names.append(field.name)
    return names


def _names_of_parts(kind: type) -> list[tuple[str, set[str]]]:
    """Those parts, with the names of their settings."""
    types = get_type_hints(kind)
    return [
        (part, {field.name for field in dataclasses.fields(types[part])})
        for part in _unnamed_parts(kind)
    ]


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    """The arguments of a verb with these settings."""
    words = {field.name for field in _words(kind)}
    types = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        how = inspect.Parameter.KEYWORD_ONLY
        if field.name in words:
            how = inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = default_of(field, None)
        if default is MISSING:
            default = inspect.Parameter.empty
        yield inspect.Parameter(field.name, how, default=default, annotation=types[field.name])


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
