"""The options of a command, as its settings have them: names, values and help texts."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import docstring_parser

from vitkit.commands import WrongWords
from vitkit.system.console.terminal import paragraphs

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


def options(settings: type, default: Any = None, prefix: str = "") -> Iterator[Option]:
    """Every option of a class of settings, those of its parts too; their values are those of
    `default`, or the class's own."""
    types = get_type_hints(settings, include_extras=True)
    texts = docstrings(settings)
    for field in dataclasses.fields(settings):
        kind = _bare(types[field.name])
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
            _mark(types[field.name], "help") or texts.get(field.name, ""),
            aliases=tuple(name.lstrip("-") for name in _mark(types[field.name], "aliases") or ()),
            is_word=_is_positional(types[field.name]),
            is_open=_holds_settings(kind),
            kind=kind,
        )


def check_options(settings: type, default: Any, words: Sequence[str], program: str) -> None:
    """Raises WrongWords, with the nearest name, for an option that a command does not have, and for a
    value that is no number or none of the choices."""
    names = {"help"}
    kinds = {}
    owners = set()
    for option in options(settings, default):
        if option.is_open:
            owners.add(option.name)
        elif not option.is_word:
            own_names = {option.name, *option.aliases}
            names |= own_names
            kinds |= dict.fromkeys(own_names, option.kind)
    for word, following in zip(words, [*words[1:], None], strict=False):
        if not word.startswith("--") or len(word) == 2:
            continue
        name, has_value, value = word[2:].partition("=")
        name = name.replace("_", "-")
        if not has_value:
            value = following
        if value is not None:
            _check_value(name, kinds.get(name), value)
        positive = name.removeprefix("no-").replace(".no-", ".")
        if positive in names or name in names or any(name.startswith(f"{o}.") for o in owners):
            continue
        sentence = f"{program} has no --{name}"
        near = get_close_matches(name, names, 1) or _ending(name, names)
        if near:
            sentence += f"; did you mean {' or '.join(f'--{each}' for each in near)}?"
            raise WrongWords(f"{sentence} --help-all lists all")
        raise WrongWords(f"{sentence}; --help-all lists what it has")


def _check_value(name: str, kind: Any, value: str) -> None:
    """Raises WrongWords for the value of an option that is no number where its type is one, or none of
    the choices that its type has."""
    kinds = {kind}
    if get_origin(kind) in (Union, UnionType):  # such as a number, or none
        kinds = set(get_args(kind)) - {NoneType}
    if get_origin(kind) is Literal:
        choices = [str(choice) for choice in get_args(kind)]
        if value not in choices:
            raise WrongWords(f"--{name} is {value!r}; it is one of {', '.join(choices)}")
    elif kinds in ({int}, {float}) and value != "None":
        (number,) = kinds
        try:
            number(value)
        except ValueError:
            what = {int: "a whole number", float: "a number"}[number]
            raise WrongWords(f"--{name} is {value!r}; it takes {what}") from None


def _ending(name: str, names: Iterable[str]) -> list[str]:
    """The longer names that end in a name, up to two, such as "model.width" for "width"."""
    return sorted(each for each in names if each.endswith(f".{name}"))[:2]


def option_name(field: str, annotation: Any) -> str:
    """What an option is called: as its field, unless tyro's `arg` names it."""
    name = _mark(annotation, "name")
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


def _mark(annotation: Any, name: str) -> Any:
    """What tyro's `arg` says of an annotated type by this name; None if it says nothing."""
    for mark in getattr(annotation, "__metadata__", ()):
        value = getattr(mark, name, None)
        if value is not None:
            return value
    return None


def _is_positional(annotation: Any) -> bool:
    """Whether tyro reads the setting from a word without a name."""
    from tyro.conf import Positional

    (positional,) = Positional[str].__metadata__
    return positional in getattr(annotation, "__metadata__", ())


def _bare(annotation: Any) -> Any:
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
