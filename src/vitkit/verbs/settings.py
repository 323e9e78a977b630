"""The options of a dataclass whose values are not the defaults, as words of a command."""

import dataclasses
from typing import Any, get_type_hints

from vitkit.system.functions.parameters import (
    MISSING,
    Option,
    default_of,
    docstrings,
    is_word,
    mark,
    option_name,
    options,
)
from vitkit.system.functions.values import bare

__all__ = [
    "MISSING",
    "Option",
    "bare",
    "default_of",
    "docstrings",
    "flags",
    "is_word",
    "mark",
    "option_name",
    "options",
]


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
