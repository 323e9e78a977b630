"""The check whether a value has a type, for arguments, settings, configurations and records."""

import dataclasses
import math
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from vitkit.system.console.text import counted, quoted
from vitkit.system.errors import BadSettings
from vitkit.system.span import Span, Unit

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    Span: 'a duration (such as "10epochs", or a number of steps)',
    NoneType: "None",
}
"""The names of plain types in messages."""
SHORT = (bool, int, float, complex, str, bytes, PurePath, Span, NoneType)
MOST_SHOWN = 20  # values of a list that a message shows


def bare(annotation: Any) -> Any:
    """A type without its annotations."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    return annotation


def alternatives(annotation: Any) -> list[Any]:
    """The types that a value, or each of several, may have: int and str for `int | tuple[str, ...]`."""
    annotation = bare(annotation)
    if get_origin(annotation) in (Union, UnionType, tuple):
        inner = [alternatives(each) for each in get_args(annotation) if each is not Ellipsis]
        return [kind for kinds in inner for kind in kinds]
    return [annotation]


def choices_of(annotation: Any) -> list[str]:
    """The values that a type allows, if it is a choice of named values."""
    choices: list[str] = []
    for kind in alternatives(annotation):
        if get_origin(kind) is Literal:
            choices += map(str, get_args(kind))
    return choices


def fits(annotation: Any, value: Any, finite: bool = False) -> bool:
    """Whether a value has a type: a class, a Literal, a union, or a tuple of these.

    A whole number is also a number; True and False are not, unlike in Python.

    Args:
        annotation: The type.
        value: The value.
        finite: Whether NaN and infinity are refused, as in saved settings.
    """
    annotation = bare(annotation)
    origin = get_origin(annotation)
    if annotation is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(each, value, finite) for each in get_args(annotation))
    if origin is Literal:
        return any(
            type(value) is type(choice) and value == choice for choice in get_args(annotation)
        )
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = get_args(annotation)
        if kinds[-1] is Ellipsis:
            return all(fits(kinds[0], each, finite) for each in value)
        return len(kinds) == len(value) and all(
            fits(kind, each, finite) for kind, each in zip(kinds, value, strict=True)
        )
    if isinstance(value, bool):
        return annotation in (bool, object)
    if annotation is float:
        return isinstance(value, int | float) and (not finite or _is_finite(value))
    if annotation is Span and isinstance(value, Span):
        return fits(float, value.n, finite=True) and value.unit in get_args(Unit)
    if isinstance(value, type):  # a class also has the methods of its objects
        return annotation in (object, type)
    return isinstance(value, origin or annotation)


def described(annotation: Any) -> str:
    """The type of a setting in messages: "a whole number", "one of token, gap", "2 values, each a finite
    number"."""
    annotation = bare(annotation)
    origin = get_origin(annotation)
    if annotation is float:
        return "a finite number"
    if origin in (Union, UnionType):
        return ", or ".join(map(described, get_args(annotation)))
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    if origin is tuple:
        first, *others = get_args(annotation)
        if others == [Ellipsis]:
            return f"a list, each {described(first)}"
        return f"{1 + len(others)} values, each {described(first)}"
    name = getattr(annotation, "__name__", str(annotation))
    article = "an" if name[0] in "AEIOU" else "a"
    return WORDS.get(annotation, f"{article} {name}")


def given(value: Any) -> str:
    """A value in messages: as Python code if that is short; an array, a data set or a model only by its type."""
    if isinstance(value, list | tuple) and not _is_short(value):
        return f"a {type(value).__name__} of {counted(len(value), 'value')}"
    if _is_short(value):
        return quoted(value)
    return f"of type {type(value).__name__}"


def _is_short(value: Any) -> bool:
    """Whether a value has a short form as Python code, such as a number, a text or a few of these."""
    if isinstance(value, list | tuple | set | frozenset):
        return len(value) <= MOST_SHOWN and all(map(_is_short, value))
    if isinstance(value, dict):
        return len(value) <= MOST_SHOWN and all(map(_is_short, value.values()))
    return isinstance(value, (*SHORT, np.generic, type))


def is_plain(annotation: Any) -> bool:
    """Whether `fits` can check a type; it cannot check a protocol, or a type of another library."""
    is_choice = get_origin(annotation) is Literal
    return is_choice or annotation in WORDS or dataclasses.is_dataclass(annotation)


@cache
def _types(settings: type) -> dict[str, Any]:
    """The types of a dataclass's fields as objects, even if the annotations are strings."""
    return get_type_hints(settings)


def check_settings(settings: "DataclassInstance") -> None:
    """Check the fields of a dataclass by their types, after unambiguous conversions: a list to a tuple, a NumPy
    number to a Python number, a Path to text, a text or a number of steps to a Span.

    Raises BadSettings if a field has a value that its type does not allow: a name that is not in a Literal, a text
    for a number, a number that is not finite.
    """
    type_of = _types(type(settings))
    for field in dataclasses.fields(settings):
        before = getattr(settings, field.name)
        if _is_plainly(type_of[field.name], before):
            continue
        value = converted(type_of[field.name], before)
        if value is not before:
            # Sets a field of a frozen dataclass during its construction
            object.__setattr__(settings, field.name, value)
        if not fits(type_of[field.name], value, finite=True):
            raise BadSettings(
                f"{field.name} is {given(value)}; it is {described(type_of[field.name])}"
            )


def _is_plainly(annotation: Any, value: Any) -> bool:
    """Whether a value is a whole number, a text, True or False, or a named value, as its type says: most settings
    are, and then `converted` and `fits`, which take longer, have nothing to do."""
    if annotation is int or annotation is str or annotation is bool:
        return type(value) is annotation
    return (
        type(value) is str and get_origin(annotation) is Literal and value in get_args(annotation)
    )


def converted(annotation: Any, value: Any) -> Any:
    """Convert a value to its type if the conversion is unambiguous: a list to a tuple, a NumPy number to a Python
    number, a Path to a str, "10epochs" or a number of steps to a Span. Other values are unchanged."""
    kinds = alternatives(annotation)
    inner = bare(annotation)
    is_several = any(get_origin(kind) is tuple for kind in (inner, *get_args(inner)))
    if isinstance(value, list) and is_several:
        value = tuple(value)
    if isinstance(value, tuple) and type(value) is tuple:
        if any(isinstance(each, np.generic) for each in value):
            value = tuple(each.item() if isinstance(each, np.generic) else each for each in value)
    elif isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, Path) and str in kinds and Path not in kinds:
        value = str(value)
    if Span in kinds and isinstance(value, str):
        value = Span.parse(value)
    elif Span in kinds and type(value) is int:
        value = Span(value)
    return value


def _is_finite(value: float) -> bool:
    """Whether a number is finite, including a whole one that is too large for a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
