"""Records that are read from files: their values, which may be from strangers, are checked against the types
of a class."""

import math
from functools import cache
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitkit.system.errors import BadRun, VitkitError

T = TypeVar("T")

LARGEST = 1 << 63  # limit of whole numbers, as in files of arrays


@cache  # Python evaluates annotations in every call
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def record_of(kind: type[T], values: Any) -> T:
    """A dataclass or a named tuple from its values in JSON.

    Whole numbers have at most 64 bits, other numbers are finite, and lists become tuples where the class
    has tuples. Raises VitkitError for values that are missing, unknown or of another type.
    """
    if not isinstance(values, dict):
        raise BadRun(f"it holds {shown(values)} in place of an object")
    types = _types(kind)  # type: ignore[arg-type]  # every class is hashable
    if unknown := sorted(values.keys() - types.keys()):
        raise BadRun(f"{shown(unknown[0])} is no part of it")
    missing = sorted(_required_fields(kind) - values.keys())  # type: ignore[arg-type]
    if missing:
        raise BadRun(f"{missing[0]!r} is missing in it")
    return kind(**{name: value_of(types[name], value, name) for name, value in values.items()})


@cache
def _required_fields(kind: type) -> set[str]:
    """The fields without a default."""
    parameters = signature(kind).parameters.values()
    return {each.name for each in parameters if each.default is Parameter.empty}


def value_of(kind: Any, value: Any, name: str) -> Any:
    """Convert a value of JSON to this type. Raises VitkitError, with the value's name, for another type."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if kind is NoneType or kind is None:
        is_right = value is None
    elif origin in (Union, UnionType):
        return _one_of(get_args(kind), value, name)
    elif origin is Literal:
        is_right = isinstance(value, str | int | NoneType) and value in get_args(kind)
    elif origin is tuple:
        return _tuple_of(get_args(kind), value, name)
    elif origin is list and isinstance(value, list):
        (item,) = get_args(kind)
        return [value_of(item, each, name) for each in value]
    elif origin is dict and isinstance(value, dict):
        _, item = get_args(kind)
        return {key: value_of(item, each, f"{name}.{key}"[:100]) for key, each in value.items()}
    elif kind is float:
        return number_of(value, name)
    elif kind is int:
        is_right = is_whole(value)
    else:
        is_right = isinstance(kind, type) and isinstance(value, kind)
    if not is_right:
        raise BadRun(f"{name} is {shown(value)}, which is not what was written")
    return value


def is_whole(value: Any) -> bool:
    """Whether a value of JSON is a whole number of at most 64 bits; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST


def number_of(value: Any, name: str) -> float:
    """A number of JSON as a float. Raises VitkitError unless it is finite."""
    is_number = is_whole(value) or (isinstance(value, float) and math.isfinite(value))
    if not is_number:
        raise BadRun(f"{name} is {shown(value)}, which is not what was written")
    return float(value)


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    return repr(value)[:100]


def _one_of(kinds: tuple, value: Any, name: str) -> Any:
    """Convert a value to the first of several types that it fits."""
    for kind in kinds:
        try:
            return value_of(kind, value, name)
        except VitkitError:
            continue
    raise BadRun(f"{name} is {shown(value)}, which is not what was written")


def _tuple_of(kinds: tuple, value: Any, name: str) -> tuple:
    """A list of JSON as a tuple: with one type for all (tuple[T, ...]), or one for each."""
    if not isinstance(value, list | tuple):
        raise BadRun(f"{name} is {shown(value)}, which is not what was written")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise BadRun(f"{name} has {len(value):,} values in place of {len(kinds)}")
    return tuple(value_of(kind, each, name) for kind, each in zip(kinds, value, strict=True))
