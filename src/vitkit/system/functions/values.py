"""A value read as a type: converted where that is certain, refused with a sentence otherwise."""

import dataclasses
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.span import Span

TYPES = {
    bool: ("True or False", bool),
    int: ("a whole number", Integral),
    float: ("a number", Real),
    str: ("text", str),
    Path: ("a path", Path),
    NoneType: ("None", NoneType),
}
"""Per plain type: its name in messages, and the classes of its values."""


def read_value(name: str, annotation: Any, value: Any) -> Any:
    """The value of an argument as its type has it: a Path for a str, a tuple for a list, a Span for
    "10epochs", a Python number for one of NumPy's.

    Raises BadSettings for a value that is not one of the choices, WrongArgument for one of another type.
    """
    annotation = bare(annotation)
    if annotation is Any:  # an object of the program's, or a name
        return str(value) if isinstance(value, Path) else value
    if isinstance(value, list):
        value = tuple(value)
    elif get_origin(annotation) is tuple and not isinstance(value, tuple):
        value = (value,)  # one value where there may be several
    if isinstance(value, tuple):
        value = tuple(map(_pythons, value))
    else:
        value = _pythons(value)
    kinds = {annotation, *get_args(annotation)}
    if Path in kinds and str not in kinds:
        if isinstance(value, str):
            value = Path(value)
        elif isinstance(value, tuple):
            value = tuple(map(Path, value))
    elif isinstance(value, Path) and Path not in kinds:
        value = str(value)
    elif Span in kinds and isinstance(value, str):
        value = Span.parse(value)
    elif annotation is str and type(value).__module__ == "torch":  # a device
        value = str(value)
    _check_fits(name, annotation, value)
    return value


def bare(annotation: Any) -> Any:
    """A type without its annotations."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    return annotation


def choices_of(annotation: Any) -> list[str]:
    """The values that a type allows, if it is a choice of named ones."""
    choices = []
    for kind in _alternatives(annotation):
        if get_origin(kind) is Literal:
            choices += map(str, get_args(kind))
    return choices


def _pythons(value: Any) -> Any:
    """A number of NumPy's as a number of Python's, which JSON can hold."""
    if isinstance(value, np.generic):
        return value.item()
    return value


def _check_fits(name: str, annotation: Any, value: Any) -> None:
    """Raises BadSettings if a value is none of the choices, WrongArgument if it has another type."""
    if _fits(annotation, value):
        return
    choices = choices_of(annotation)
    if choices:
        wrong = value
        if isinstance(value, tuple):
            wrong = next((each for each in value if str(each) not in choices), value)
        raise BadSettings(f"{name} is {wrong!r}; it is one of {', '.join(choices)}")
    kinds = [kind for kind in _alternatives(annotation) if kind in TYPES]
    what = dict.fromkeys(TYPES[kind][0] for kind in kinds)
    raise WrongArgument(f"{name} is {value!r}; it takes {' or '.join(what) or annotation}")


def _alternatives(annotation: Any) -> list[Any]:
    """The types that a value, or each of several, may have."""
    annotation = bare(annotation)
    if get_origin(annotation) in (Union, UnionType, tuple):
        inner = [_alternatives(each) for each in get_args(annotation) if each is not Ellipsis]
        return [kind for kinds in inner for kind in kinds]
    return [annotation]


def _fits(annotation: Any, value: Any) -> bool:
    """Whether a value has this type. A type that is not plain is left to the function."""
    annotation = bare(annotation)
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(_fits(each, value) for each in get_args(annotation))
    if origin is Literal:
        return any(
            value == choice and type(value) is type(choice) for choice in get_args(annotation)
        )
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = get_args(annotation)
        if kinds[-1] is Ellipsis:
            return all(_fits(kinds[0], each) for each in value)
        return len(kinds) == len(value) and all(map(_fits, kinds, value))
    if dataclasses.is_dataclass(annotation):
        return isinstance(value, annotation)
    if annotation not in TYPES or type(value).__module__.startswith("vitkit."):
        return True
    if isinstance(value, bool):  # a bool is an int, but not meant as a number
        return annotation is bool
    return isinstance(value, TYPES[annotation][1])
