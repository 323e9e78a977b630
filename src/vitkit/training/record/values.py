"""A recipe as plain values, which recipe.json holds, and in what two of them differ."""

import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from vitkit.system.span import Span

# Settings, and parts of the recipe, that may change when a run continues: its weights do not depend
# on them
FREE_ON_RESUME = (
    "name",
    "evals",
    "evaluate_every",
    "data.workers",
    "data.keep_decoded",
    "data.check",
    "keep",
    "log_every",
    "tensorboard",
)


def to_json(node: Any, declared: Any = None) -> Any:
    """A recipe, or a part of it (`node`), as plain values; spans as text.

    `declared` is the type that the node's field is annotated with. Where the node is of another
    class, its values begin with that "class": of `objective: Objective = Supervised()` they are
    {"class": "Supervised", "loss": "softmax", ...}. So two objectives with the same settings are
    two recipes.
    """
    # Values that are no dataclass
    if isinstance(node, Span):
        return str(node)
    if isinstance(node, tuple):
        item_type, *_ = get_args(declared) or (None,)
        return [to_json(value, item_type) for value in node]
    if not is_dataclass(node):
        return node

    # A dataclass: its class, if that is not known from the field, and its settings
    values = {}
    if declared is not None and type(node) is not without_none(declared):
        values["class"] = class_name(type(node))  # no setting can have this name: it is a keyword
    types = get_type_hints(type(node))
    for setting in fields(node):
        values[setting.name] = to_json(getattr(node, setting.name), types[setting.name])
    return values


def with_defaults(ran: dict, asked: Any) -> dict:
    """A record of a recipe, or of a part of it, with the default of every setting that it lacks:
    it was written by earlier code, which did not have that setting.

    `asked` has the settings of today. Parts of another class than there stay as they are.
    """
    filled = dict(ran)
    types = get_type_hints(type(asked))
    for setting in fields(asked):
        value = getattr(asked, setting.name)
        if setting.name not in filled:
            default = default_of(setting)
            if default is not MISSING:
                filled[setting.name] = to_json(default, types[setting.name])
        elif is_dataclass(value) and isinstance(filled[setting.name], dict):
            part = filled[setting.name]
            if part.get("class") == to_json(value, types[setting.name]).get("class"):
                filled[setting.name] = with_defaults(part, value)
    return filled


def default_of(setting: Field) -> Any:
    """The default of a dataclass's field; MISSING if it has none."""
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return setting.default


def without_none(declared: Any) -> Any:
    """The type T of `T | None`; any other type as it is."""
    if get_origin(declared) is tuple:
        return declared
    others = [kind for kind in get_args(declared) if kind is not NoneType]
    if len(others) == 1:
        return others[0]
    return declared


def class_name(kind: type) -> str:
    """A class as recipe.json names it: "Class" if it is vitkit's own, else "module:Class" or
    "file.py:Class".

    A file is named without its folder, so that a run can be continued from any folder and on any
    machine.
    """
    module = kind.__module__
    if module.partition(".")[0] == "vitkit":
        return kind.__name__
    if module == "__main__" and hasattr(sys.modules[module], "__file__"):
        module = Path(sys.modules[module].__file__).name
    return f"{module}:{kind.__qualname__}"


def differences(ran: dict, asked: dict, prefix: str = "", free: bool = False) -> list[str]:
    """In what two recipes, as plain values, differ: "name: value that ran -> value asked for" of
    every such setting, but those that are free on resume; with `free` of those alone."""
    texts = []
    for name in sorted(ran.keys() | asked.keys()):
        path = prefix + name
        before = _numbered(ran.get(name))
        now = _numbered(asked.get(name))
        if isinstance(before, dict) and isinstance(now, dict):
            texts += differences(before, now, path + ".", free)
        elif before != now and _is_free(path) == free:
            texts.append(f"{path}: {before} -> {now}")
    return texts


def _is_free(path: str) -> bool:
    """Whether a setting, or the part of the recipe that it is in, is free on resume."""
    return any(f"{path}.".startswith(f"{name}.") for name in FREE_ON_RESUME)


def _numbered(value: Any) -> Any:
    """A list of dataclasses, such as evals, as a dict by number; anything else as it is."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {str(i): item for i, item in enumerate(value)}
    return value
