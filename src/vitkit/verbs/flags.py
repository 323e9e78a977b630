"""The words that would be typed for a command's settings."""

import dataclasses
from typing import Any, get_type_hints

from vitkit.verbs.settings import MISSING, default_of, option_name


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
