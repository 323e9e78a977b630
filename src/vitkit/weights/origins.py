"""Check the origin of a model that a file contains, because commands read some of its entries."""

import math
from typing import Any

from vitkit.system.storage.records import is_whole, shown

TEXTS = (
    "recipe", "data", "init", "head", "file", "format", "layout", "groups", "held_out", "faster",
    "temperature_fitted_on", "temperature_images",
)  # fmt: skip
COUNTS = ("seed", "split_seed", "steps", "merged")


def checked_origin(origin: dict) -> tuple[dict, tuple[str, ...]]:
    """An origin without invalid values, and a sentence on each of these."""
    kept = {}
    notes = []
    for name, value in origin.items():
        if name == "init" and isinstance(value, dict):
            value = called_in(value)  # earlier versions of the estimator wrote the whole origin
        if isinstance(name, str) and _is_right(name, value):
            kept[name] = value
        else:
            notes.append(
                f"{shown(name)} of its origin is {shown(value)}, which is invalid, and left out"
            )
    return kept, tuple(notes)


def called_in(origin: dict) -> str:
    """The name of a model in its origin: its file, its recipe, or what it was initialised with; "" if
    there is none of these."""
    for name in ("file", "recipe", "init"):
        value = origin.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def _is_right(name: str, value: Any) -> bool:
    """Whether a value is valid for an entry. Any value is valid for entries that only people read."""
    if name in TEXTS:
        return isinstance(value, str)
    if name in COUNTS:
        return is_whole(value) and value >= 0
    if name == "temperature":
        return _is_number(value) and value > 0
    if name == "learned":
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if name == "left_out":
        return isinstance(value, dict) and all(map(_is_number, value.values()))
    if name == "metrics":
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    if name == "objective":
        if not isinstance(value, dict):
            return False
        heads = value.get("heads", 1)
        return is_whole(heads) and heads > 0
    return True


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return (is_whole(value) or isinstance(value, float)) and math.isfinite(value)
