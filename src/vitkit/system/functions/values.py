"""Reading a value as a type: it is converted if the conversion is unambiguous, or refused with a message."""

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from vitkit.system.console.text import quoted
from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.storage.files import impossible
from vitkit.system.values import WORDS, alternatives, bare, choices_of, converted, fits, is_plain


def read_value(name: str, annotation: Any, value: Any) -> Any:
    """Convert the value of an argument to its type: a str to a Path, a list to a tuple, "10epochs" or a number of
    steps to a Span, a NumPy number to a Python number.

    Raises BadSettings for a value that is not one of the choices, WrongArgument for one of another type.
    """
    if _is_path(annotation):
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
    _check_fits(name, annotation, value)
    return value


def _is_path(annotation: Any) -> bool:
    """Whether a parameter is a path, or the name of a model or of data, which may be one: a Path, or a text with a
    name for usage messages, such as MODEL. Not images, of which the others are answered."""
    marks: set[Any] = set()
    for inner in (annotation, *get_args(annotation)):  # also of tuples and optional types
        marks.update(mark for mark in getattr(inner, "__metadata__", ()) if isinstance(mark, str))
    return Path in alternatives(annotation) or bool(marks - {"IMAGE"})


def _check_possible(name: str, value: Any) -> None:
    """Raise BadSettings for a path, or one of several, that no file can have."""
    values = value if isinstance(value, list | tuple) else [value]
    for each in values:
        if isinstance(each, str | Path) and (reason := impossible(each)):
            raise BadSettings(f"`{name}` is {quoted(str(each))}, {reason}; give another name")


def _check_fits(name: str, annotation: Any, value: Any) -> None:
    """Raise BadSettings if a value is not one of the choices, WrongArgument if it has another type. Types that are
    not plain, and objects of vitkit such as models, are left to the function."""
    kinds = alternatives(annotation)
    if fits(annotation, value) or not all(map(is_plain, kinds)):
        return
    is_own = type(value).__module__.startswith("vitkit.")
    if is_own and not any(map(is_dataclass, kinds)):
        return
    wrong = value
    if isinstance(value, tuple):  # find the wrong element
        wrong = next((each for each in value if not any(fits(kind, each) for kind in kinds)), value)
    choices = choices_of(annotation)
    if choices:
        raise BadSettings(f"{name} is {wrong!r}; it is one of {', '.join(choices)}")
    what = dict.fromkeys(WORDS.get(kind, kind.__name__) for kind in kinds)
    raise WrongArgument(f"{name} is {wrong!r}; it takes {' or '.join(what)}")
