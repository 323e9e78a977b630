"""Changing one setting of a frozen value by its name, such as "optim.lr" of a recipe."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from vitkit.system.functions.call import no_such_argument
from vitkit.system.functions.parameters import options
from vitkit.system.functions.values import read_value

V = TypeVar("V")


def override(value: V, name: str, new: Any) -> V:
    """A copy of a frozen dataclass with a new value of one setting.

    Args:
        value: The dataclass, such as a Recipe.
        name: The setting, with a dot before the field of a part: "batch", "optim.lr".
        new: Its new value, which is converted to the field's type (`read_value`).

    Raises:
        KeyError: If there is no such setting.
        WrongArgument: If `new` has another type.
        BadSettings: If `new` is not one of the choices.
    """
    return _override(value, name, new, "")


def _override(value: Any, name: str, new: Any, before: str) -> Any:
    head, _, rest = name.partition(".")
    types = get_type_hints(type(value))
    if head not in types:
        raise KeyError(name)
    inner = getattr(value, head)
    if rest and not dataclasses.is_dataclass(inner):
        raise KeyError(name)
    if rest:
        new = _override(inner, rest, new, f"{before}{head}__")
    else:
        new = read_value(f"{before}{head}", types[head], new)
    return dataclasses.replace(value, **{head: new})


def override_all(function: str, value: V, settings: Mapping[str, Any]) -> V:
    """A copy of a frozen dataclass with the settings of a call, such as {"optim__lr": 0.1}. Raises
    WrongArgument for one that does not exist, with the most similar name."""
    for argument, new in settings.items():
        try:
            value = override(value, argument.replace("__", "."), new)
        except KeyError:
            known = [option.argument for option in options(type(value), value)]
            raise no_such_argument(function, argument, known) from None
    return value
