"""The settings of a verb, a dataclass: the options of its command, and the arguments of its function."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

import docstring_parser

from vitkit.system.console.terminal import paragraphs
from vitkit.system.span import Span

MISSING = dataclasses.MISSING

# The options of a command


class Option(NamedTuple):
    """A setting that has a name on the command line."""

    name: str
    """Without its dashes, such as "optim.lr"; of a word without a name, such as MODEL, its
    field."""
    value: Any
    """Its default; MISSING if there is none."""
    help: str
    """What it is, each paragraph on one line."""
    aliases: tuple[str, ...] = ()
    """Its other names, without their dashes."""
    is_word: bool = False
    """Whether it is typed without a name, as MODEL and DATA are."""
    is_open: bool = False
    """Whether it stands for settings that are known only by its value, such as those of a model."""
    kind: Any = None
    """The type of its value."""
    metavar: str = ""
    """What usage calls the value; empty for the name in capitals."""


def options(settings: type, default: Any = None, prefix: str = "") -> Iterator[Option]:
    """Every option of a class of settings, those of its parts too; their values are those of
    `default`, or the class's own."""
    types = get_type_hints(settings, include_extras=True)
    texts = docstrings(settings)
    for field in dataclasses.fields(settings):
        kind = bare(types[field.name])
        value = default_of(field, default)
        name = option_name(field.name, types[field.name])
        if dataclasses.is_dataclass(value):
            kind = type(value)
        if dataclasses.is_dataclass(kind):
            below = f"{prefix}{name}." if name else prefix
            yield from options(kind, None if value is MISSING else value, below)
            continue
        yield Option(
            f"{prefix}{name}",
            value,
            mark(types[field.name], "help") or texts.get(field.name, ""),
            aliases=tuple(name.lstrip("-") for name in mark(types[field.name], "aliases") or ()),
            is_word=is_word(types[field.name]),
            is_open=_holds_settings(kind),
            kind=kind,
            metavar=mark(types[field.name], "metavar") or "",
        )


def option_name(field: str, annotation: Any) -> str:
    """What an option is called: as its field, unless tyro's `arg` names it."""
    name = mark(annotation, "name")
    if name is not None:
        return name
    return field.replace("_", "-")


def default_of(field: dataclasses.Field, owner: Any) -> Any:
    """The default of a field: the value in `owner`, a default of the whole dataclass if there is
    one, or the field's own; MISSING if it has none."""
    if dataclasses.is_dataclass(owner):
        return getattr(owner, field.name)
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    return MISSING


@cache
def docstrings(settings: type) -> dict[str, str]:
    """The docstrings of a dataclass's fields, by name; those of its bases too."""
    texts = {}
    for base in reversed(settings.__mro__):
        if dataclasses.is_dataclass(base):
            for field in docstring_parser.parse_from_object(base).params:
                texts[field.arg_name] = paragraphs(field.description)
    return texts


def mark(annotation: Any, name: str) -> Any:
    """What tyro's `arg` says of an annotated type by this name; None if it says nothing."""
    for mark in getattr(annotation, "__metadata__", ()):
        value = getattr(mark, name, None)
        if value is not None:
            return value
    return None


def is_word(annotation: Any) -> bool:
    """Whether tyro reads the setting from a word without a name."""
    from tyro.conf import Positional

    (positional,) = Positional[str].__metadata__
    return positional in getattr(annotation, "__metadata__", ())


def bare(annotation: Any) -> Any:
    """A type without its annotations."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    return annotation


def _holds_settings(kind: Any) -> bool:
    """Whether a value of this type is a part with settings of its own, or several: a union or a
    tuple of dataclasses, or a protocol."""
    if getattr(kind, "_is_protocol", False):
        return True
    return any(dataclasses.is_dataclass(each) or _holds_settings(each) for each in get_args(kind))


def flags(settings: Any, prefix: str = "") -> list[str]:
    """The options of a dataclass whose values are not the defaults: ["--split", "val"]. Settings
    without a default, which are typed without a name, are left out."""
    types = get_type_hints(type(settings), include_extras=True)
    words = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        default = default_of(field, None)
        if default is MISSING or value == default:
            continue
        name = option_name(field.name, types[field.name])
        if dataclasses.is_dataclass(value):
            words += flags(value, f"{name}." if name else "")
            continue
        words.append(f"--{prefix}{name}")
        if isinstance(value, tuple):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return words


# The arguments of a function

Begin = Callable[[Any, frozenset[str]], Any]
"""(what decides the other defaults, the names of all settings that were given) -> all settings"""


def parameters(kind: type) -> Iterator[inspect.Parameter]:
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


def settings_from(
    kind: type,
    name: str,
    words: Sequence[Any],
    values: dict[str, Any],
    begin: "Begin | None" = None,
) -> Any:
    """The settings of a verb from the arguments of a call.

    The settings of a part without a name of its own (Hints) stand beside the others; those of a part
    with a name follow it after two underscores, as in optim__lr. Raises TypeError, with the nearest
    name, for an argument that does not exist.
    """
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
    """Settings of these values, and the defaults of the others. Raises TypeError if one is missing."""
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
    for a name that does not exist."""
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
