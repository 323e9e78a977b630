"""The settings of a verb, a dataclass, as the options of its command: names, values and help texts."""

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import (
    Annotated,
    Any,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

import docstring_parser

from vitkit.system.console.text import paragraphs

MISSING = dataclasses.MISSING


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
    argument: str = ""
    """What a function calls it, such as "optim__lr"."""


def options(
    settings: type, default: Any = None, prefix: str = "", part: str = ""
) -> Iterator[Option]:
    """Every option of a class of settings, those of its parts too; their values are those of
    `default`, or the class's own. `prefix` and `part` begin the names of options and of arguments."""
    types = get_type_hints(settings, include_extras=True)
    texts = docstrings(settings)
    for field in dataclasses.fields(settings):
        kind = bare(types[field.name])
        value = default_of(field, default)
        name = option_name(field.name, types[field.name])
        if dataclasses.is_dataclass(value):
            kind = type(value)
        if dataclasses.is_dataclass(kind):
            inner = None if value is MISSING else value
            if name:
                inner_part = f"{part}{field.name}__"
                yield from options(kind, inner, f"{prefix}{name}.", inner_part)
            else:  # its settings stand beside the others
                yield from options(kind, inner, prefix, part)
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
            argument=f"{part}{field.name}",
        )


def option_name(field: str, annotation: Any) -> str:
    """The name of an option: that of its field, unless tyro's `arg` names it."""
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
    """The value that tyro's `arg` gives an annotated type by this name; None if it says nothing."""
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
