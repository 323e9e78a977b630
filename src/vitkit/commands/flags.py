"""The words that would be typed for a command's settings."""

import dataclasses
from typing import Any, get_type_hints


def flags(settings: Any, prefix: str = "") -> list[str]:
    """The options of a dataclass whose values are not the defaults: ["--split", "val"]. Settings
    without a default, which are typed without a name, are left out."""
    types = get_type_hints(type(settings), include_extras=True)
    words = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING or value == default:
            continue
        name = _option(field.name, types[field.name])
        if dataclasses.is_dataclass(value):
            words += flags(value, f"{name}." if name else "")
            continue
        words.append(f"--{prefix}{name}")
        if isinstance(value, tuple):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return words


def _option(field: str, annotation: Any) -> str:
    """What an option is called: as its field, unless tyro's `arg` names it."""
    for mark in getattr(annotation, "__metadata__", ()):
        name = getattr(mark, "name", None)
        if name is not None:
            return name
    return field.replace("_", "-")
