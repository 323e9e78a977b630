"""What is written down of a recipe: plain values, and in what two of them differ."""

import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from vitkit.system.span import Span

FREE_ON_RESUME = (
    "data.workers",
    "data.keep_decoded",
    "data.check",
    "keep",
    "log_every",
    "tensorboard",
)  # they do not change the weights


def to_json(node: Any, declared: Any = None) -> Any:
    """A recipe, or a part of it, as plain values; spans as text.

    A dataclass that is not of its `declared` type says its "class": two objectives with the same
    settings are two recipes. A node whose type is not declared is its own.
    """
    if isinstance(node, Span):
        return str(node)
    if isinstance(node, tuple):
        item, *_ = get_args(declared) or (None,)
        return [to_json(value, item) for value in node]
    if not is_dataclass(node):
        return node
    values = {}
    if declared is not None and type(node) is not _without_none(declared):
        values["class"] = class_name(type(node))  # no field can be called so
    types = get_type_hints(type(node))
    for setting in fields(node):
        values[setting.name] = to_json(getattr(node, setting.name), types[setting.name])
    return values


def _without_none(declared: Any) -> Any:
    """The type T of `T | None`; any other as it is."""
    others = [kind for kind in get_args(declared) if kind is not NoneType]
    if get_origin(declared) is not tuple and len(others) == 1:
        return others[0]
    return declared


def class_name(kind: type) -> str:
    """A class as a file names it: by its name alone for vitkit's own, else as "module:Class" or
    "file.py:Class".

    A file is named without its folder, so that a run goes on from wherever it is started and on
    whichever machine.
    """
    module = kind.__module__
    if module.partition(".")[0] == "vitkit":
        return kind.__name__
    if module == "__main__" and hasattr(sys.modules[module], "__file__"):
        module = Path(sys.modules[module].__file__).name
    return f"{module}:{kind.__qualname__}"


def differences(ran: dict, asked: dict, prefix: str = "") -> list[str]:
    """ "name: value that ran -> value asked for" of every setting in which two saved recipes differ
    and that counts."""
    texts = []
    for name in sorted(ran.keys() | asked.keys()):
        path = prefix + name
        before = _by_name(ran.get(name))
        now = _by_name(asked.get(name))
        if isinstance(before, dict) and isinstance(now, dict):
            texts += differences(before, now, path + ".")
        elif before != now and path not in FREE_ON_RESUME:
            texts.append(f"{path}: {before} -> {now}")
    return texts


def _by_name(value: Any) -> Any:
    """A list of settings as a dict, by their number; anything else as it is."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {str(i): item for i, item in enumerate(value)}
    return value
