"""Reading the arguments of a call by the types of the function's signature."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Unpack, get_origin, get_type_hints

from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.functions.parameters import groups_of
from vitkit.system.functions.results import ModelResult
from vitkit.system.functions.values import read_value

MAY_BE_EMPTY = {("finetune", "model")}
"""Functions with a required argument that may be an empty text: `finetune` then chooses the model."""


def read_arguments(
    function: Callable, args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments, each converted to its type (`values.py`). A list in the place
    of `*images`, or with that name, is expanded.

    Raises WrongArgument for an argument that does not exist, with the most similar name, for a missing one,
    and for a value of another type; BadSettings for a value that is not one of the choices.
    """
    signature, types, open_group = _described(function)
    name = function.__name__
    positional = [each for each in signature.parameters.values() if each.kind in POSITIONAL]
    variadic = [each for each in positional if each.kind is inspect.Parameter.VAR_POSITIONAL]

    # Names that do not exist
    for argument in named:
        if argument not in types and not open_group:
            raise no_such_argument(name, argument, types)

    # Positional arguments fill parameters without a named value; the last ones fill *images or required ones
    plain = [each.name for each in positional if each not in variadic]
    required = [
        each.name
        for each in signature.parameters.values()
        if each.default is each.empty and each.kind not in VARIADIC
    ]
    free = [each for each in plain if each not in named]
    if not variadic:
        free += [each for each in required if each not in plain and each not in named]
    if len(args) > len(free) and not variadic:
        raise WrongArgument(
            f"vitkit.{name} takes {' and '.join(free) or 'nothing'} by position; the other settings by "
            "name"
        )
    by_name = dict(zip(free, args, strict=False)) | dict(named)
    rest = args[len(free) :]
    for each in variadic:
        if each.name in by_name:  # images=[...]
            rest = [*rest, by_name.pop(each.name)]
    if len(rest) == 1 and isinstance(rest[0], list | tuple):
        (rest,) = rest

    # Required arguments
    missing = [each for each in required if each not in by_name]
    if missing:
        raise WrongArgument(f"vitkit.{name} needs {' and '.join(missing)}")
    for argument in required:
        if by_name[argument] is None:
            raise WrongArgument(f"vitkit.{name} needs {argument}, which is None")
        is_empty = isinstance(by_name[argument], str) and not by_name[argument]
        if is_empty and (name, argument) not in MAY_BE_EMPTY:
            raise BadSettings(f"vitkit.{name} needs {argument}, which is empty")

    # The values
    given = {}
    for argument, value in by_name.items():
        value = stands_for(value)
        if argument in types:
            value = read_value(argument, types[argument], value)
        given[argument] = value
    if not variadic:
        return (), given
    (several,) = variadic
    first = [given.pop(each) for each in plain]
    first += [read_value(several.name, types[several.name], stands_for(value)) for value in rest]
    return tuple(first), given


POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@cache
def _described(function: Callable) -> tuple[inspect.Signature, dict[str, Any], bool]:
    """The signature of a function, the types of all its arguments by name, and whether it accepts others
    too, such as the settings of a recipe."""
    signature = inspect.signature(function)
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    types = {}
    open_group = False
    for name, each in signature.parameters.items():
        if each.kind is not inspect.Parameter.VAR_KEYWORD:
            types[name] = hints[name]
            continue
        open_group = get_origin(hints[name]) is not Unpack
        for group in groups_of(hints[name]):
            types |= get_type_hints(group, include_extras=True)
    return signature, types, open_group


def takes_a_recipe(function: Callable) -> bool:
    """Whether a function also accepts the settings of a recipe, besides its own parameters."""
    return _described(function)[2]


def stands_for(value: Any) -> Any:
    """Replace a result by the model that it made, also in a list; other values are unchanged."""
    if isinstance(value, ModelResult):
        return value.made
    if isinstance(value, list | tuple) and any(isinstance(each, ModelResult) for each in value):
        return [stands_for(each) for each in value]
    return value


def no_such_argument(name: str, argument: str, known: Iterable[str]) -> WrongArgument:
    """The error for an argument that does not exist, with the most similar name that does."""
    near = get_close_matches(argument, list(known), 1)
    question = f"; did you mean {near[0]}?" if near else ""
    return WrongArgument(f"vitkit.{name} has no setting {argument!r}{question}")
