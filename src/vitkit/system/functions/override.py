"""Changing settings of a frozen value by their names, such as "optim__lr" of a recipe."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from vitkit.system.functions.call import no_such_argument
from vitkit.system.functions.parameters import options
from vitkit.system.functions.values import read_value

V = TypeVar("V")


def override_all(function: str, value: V, settings: Mapping[str, Any]) -> V:
    """A copy of a frozen dataclass with new values of some settings.

    The settings of each dataclass are replaced together, so that their order does not matter, and only the
    result is checked.

    Args:
        function: The name of the function in messages.
        value: The dataclass, such as a Recipe.
        settings: The settings of a call, with two underscores or a dot before the field of a part, such
            as {"batch": 64, "optim__lr": 0.1}. Each value is converted to its field's type (`read_value`).

    Raises:
        WrongArgument: If a setting does not exist, with the most similar name, or has another type.
        BadSettings: If a value is not one of the choices, or the values do not go together.
    """
    by_argument = {name.replace(".", "__"): new for name, new in settings.items()}
    try:
        return _replaced(value, by_argument, "")
    except _NoSuchSetting as error:
        known = [option.argument for option in options(type(value), value)]
        raise no_such_argument(function, error.args[0], known) from None


class _NoSuchSetting(Exception):
    """A setting that does not exist; the argument is its name."""


def _replaced(value: Any, settings: Mapping[str, Any], before: str) -> Any:
    """A copy of a dataclass with these settings. before: the beginning of their names in the call, for
    messages, such as "optim__"."""
    # The new values of fields, and those of fields of parts
    types = get_type_hints(type(value))
    changes = {}
    of_parts: dict[str, dict[str, Any]] = {}
    for name, new in settings.items():
        head, _, rest = name.partition("__")
        if head not in types:
            raise _NoSuchSetting(f"{before}{name}")
        if rest:
            of_parts.setdefault(head, {})[rest] = new
        else:
            changes[head] = read_value(f"{before}{head}", types[head], new)

    # A part may be replaced too; its settings then change the new one
    for head, settings_of_part in of_parts.items():
        part = changes.get(head, getattr(value, head))
        if not dataclasses.is_dataclass(part):
            raise _NoSuchSetting(f"{before}{head}__{next(iter(settings_of_part))}")
        changes[head] = _replaced(part, settings_of_part, f"{before}{head}__")
    return dataclasses.replace(value, **changes)
