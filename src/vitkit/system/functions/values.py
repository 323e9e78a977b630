"""Reading a value as a type: it is converted if the conversion is unambiguous, or refused with a message."""

from pathlib import Path
from typing import Any, get_args, get_origin

from vitkit.system.console.text import quoted
from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.storage.files import impossible
from vitkit.system.values import (
    WORDS,
    alternatives,
    bare,
    choices_of,
    converted,
    fits,
    given,
    is_plain,
)

DATA_SETS = {"DATA", "PHOTOS"}
"""Names in usage messages of parameters that name a data set."""


def read_value(name: str, annotation: Any, value: Any) -> Any:
    """Convert the value of an argument to its type: a str to a Path, a list to a tuple, "10epochs" or a number of
    steps to a Span, a NumPy number to a Python number.

    Raises BadSettings for a value that is not one of the choices, WrongArgument for one of another type.
    """
    marks = _marks(annotation)
    original = value
    is_path = Path in alternatives(annotation)
    is_name = bool(marks - {"IMAGE"})  # of images, the others are answered
    is_empty = isinstance(value, str) and not value
    if is_path or (is_name and not is_empty):  # an empty name is the default of many
        _check_possible(name, value)
    annotation = bare(annotation)
    if annotation is Any:  # an object of the program, or a name
        return str(value) if isinstance(value, Path) else value
    if isinstance(value, list):
        value = tuple(value)
    elif get_origin(annotation) is tuple and not isinstance(value, tuple):
        value = (value,)  # one value for a parameter of several
    kinds = {annotation, *get_args(annotation)}
    if Path in kinds and str not in kinds:
        if isinstance(value, str):
            value = Path(value)
        elif isinstance(value, tuple):
            value = tuple(Path(each) if isinstance(each, str) else each for each in value)
    elif annotation is str and type(value).__module__ == "torch":  # a device
        value = str(value)
    value = converted(annotation, value)
    if not _fits(annotation, value):
        raise _unfit(name, annotation, original, is_data=bool(marks & DATA_SETS))
    return value


def read_flag(name: str, value: Any) -> bool:
    """A value as True or False, which None, 0 and 1 stand for too. Raises WrongArgument for another one."""
    if value is None or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    return bool(read_value(name, bool, value))


def _marks(annotation: Any) -> set[str]:
    """The names that a type has in usage messages, such as MODEL; they mark paths, and names that may be one."""
    marks: set[str] = set()
    for inner in (annotation, *get_args(annotation)):  # also of tuples and optional types
        marks.update(mark for mark in getattr(inner, "__metadata__", ()) if isinstance(mark, str))
    return marks


def _check_possible(name: str, value: Any) -> None:
    """Raise BadSettings for a path, or one of several, that no file can have."""
    values = value if isinstance(value, list | tuple) else [value]
    for each in values:
        if isinstance(each, str | Path) and (reason := impossible(each)):
            raise BadSettings(f"`{name}` is {quoted(str(each))}, {reason}; give another name")


def _fits(annotation: Any, value: Any) -> bool:
    """Whether a value has a type; also for types that are not plain, which the function checks."""
    return fits(annotation, value) or not all(map(is_plain, alternatives(annotation)))


def _unfit(name: str, annotation: Any, value: Any, is_data: bool) -> BadSettings:
    """The error for a value that is not one of the choices or, as WrongArgument, for one of another type. is_data:
    the value is to name a data set."""
    kinds = alternatives(annotation)
    wrong = value
    is_several = any(get_origin(kind) is tuple for kind in (annotation, *get_args(annotation)))
    if is_several and isinstance(value, list | tuple):  # find the wrong element
        wrong = next((each for each in value if not any(fits(kind, each) for kind in kinds)), value)
    choices = choices_of(annotation)
    if choices:
        return BadSettings(f"{name} is {given(wrong)}; it is one of {', '.join(choices)}")
    if is_data:
        return WrongArgument(
            f"{name} is {given(wrong)}; it takes the path, address or name of a data set; for a "
            "Source, give 'file.py:function', the name of a function that returns it"
        )
    what = dict.fromkeys(WORDS.get(kind, kind.__name__) for kind in kinds)
    return WrongArgument(f"{name} is {given(wrong)}; it takes {' or '.join(what)}")
