"""A recipe as plain values, as in recipe.json: conversion, differences, and defaults."""

import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from vitkit import evaluation, models, objectives
from vitkit.system.errors import BadRun
from vitkit.system.span import Span
from vitkit.system.storage.addresses import values_without_credentials
from vitkit.system.storage.files import Types, check_types, parse_json
from vitkit.system.storage.records import value_of

# Settings, and parts of the recipe, that may change when a run continues, because its weights do not depend
# on them
FREE_ON_RESUME = (
    "name",
    "evals",
    "evaluate_every",
    "data.source",  # the images themselves are compared, by their fingerprints
    "data.workers",
    "data.keep_decoded",
    "data.check",
    "shard_group",  # a run may continue on other machines
    "keep",
    "log_every",
    "track",
)


# Cached for each class, because Python evaluates annotations in every call
type_hints = cache(get_type_hints)


def read_object(file: Path, types: Types | None = None) -> dict:
    """The object in a JSON file of a run; empty if the file is missing or damaged, is not an object, or has a
    value of another type than `types`."""
    try:
        values = parse_json(file.read_bytes())
        if not isinstance(values, dict):
            return {}
        check_types(values, types or {})
    except (OSError, ValueError):
        return {}
    return values


OF_DATA: dict[str, Any] = {
    "source": str,
    "place": str,
    "split_seed": int,
    "groups": str,
    "target": str,
    "labels": list[str],
    "counts": dict[str, int],
    "fingerprint": dict[str, str],
    "others": dict[str, tuple[int, str]],
    "skipped": dict[str, list[tuple[int, str]]],
    "notes": list[str],
    "made_fingerprint": str | None,
    "readers": int,
    "masks": str,
    "masks_fingerprint": dict[str, str],
    "legend": dict,
}
"""Types of the values in data.json."""


def check_data(data: Any) -> dict:
    """Check the values of a data.json, and return them. Raises VitkitError for a value that no run writes."""
    if not isinstance(data, dict):
        raise BadRun(f"the data are {repr(data)[:100]}")
    for name, kind in OF_DATA.items():
        if name in data:
            value_of(kind, data[name], name)
    counts = data.get("counts", {}).values()
    broken = [index for bad in data.get("skipped", {}).values() for index, _ in bad]
    if any(number < 0 for number in (*counts, *broken, data.get("split_seed", 0))):
        raise BadRun("a number of images is negative")
    return data


def check_recipe(recipe: Any) -> dict:
    """Check the values of a recipe.json, and return them. Raises VitkitError unless they and "data" are objects,
    and the data's "source" is text."""
    data = recipe.get("data", {}) if isinstance(recipe, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("source", ""), str):
        raise BadRun("the recipe or its data is not an object, or the data's source is not text")
    check_types(recipe, {"name": str})
    return recipe


def to_json(node: Any, declared: Any = None) -> Any:
    """A recipe, or a part of it (`node`), as plain values; spans as text.

    `declared` is the annotated type of the node's field. If the node is of another class, its values begin with
    that "class": for `objective: Objective = Supervised()` they are {"class": "Supervised", "loss": "softmax",
    ...}. So recipes with different objectives differ even if the settings of these are equal.
    """
    # Values other than dataclasses
    if isinstance(node, Span):
        return str(node)
    if isinstance(node, str):
        # Records may be shared, so they hold no credentials; a command that continues the run gives them again
        return values_without_credentials(node)
    if isinstance(node, tuple):
        item_type, *_ = get_args(declared) or (None,)
        return [to_json(value, item_type) for value in node]
    if not is_dataclass(node):
        return node

    # A dataclass: its class, if that is not the declared one, and its settings
    values = {}
    if declared is not None and type(node) is not without_none(declared):
        values["class"] = class_name(type(node))  # no setting can have this name: it is a keyword
    kind: type = type(node)
    types = type_hints(kind)
    for setting in fields(node):
        values[setting.name] = to_json(getattr(node, setting.name), types[setting.name])
    return values


def with_defaults(recorded: dict, requested: Any) -> dict:
    """A record of a recipe, or of a part of it, with the defaults of the settings that it lacks because an older
    version wrote it.

    requested: a recipe, or a part of it, which has all of today's settings. Parts of the record with another
        class than in `requested` stay as they are.
    """
    filled = dict(recorded)
    filled.pop("tensorboard", None)  # an old setting, now `track`, on which no weight depends
    kind: type = type(requested)
    types = type_hints(kind)
    for setting in fields(requested):
        value = getattr(requested, setting.name)
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
    """The name of a class in recipe.json: "Class" for vitkit's own, else "module:Class" or "file.py:Class".

    A file's folder is left out, so that a run can be continued from any folder and on any machine.
    """
    module = kind.__module__
    if module.partition(".")[0] == "vitkit":
        return kind.__name__
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" and file:
        module = Path(file).name
    return f"{module}:{kind.__qualname__}"


def differences(recorded: dict, requested: dict, prefix: str = "", free: bool = False) -> list[str]:
    """The differences of two recipes, as plain values: "name: recorded value -> requested value" for each
    setting that must not change when a run continues; with `free`, for each one that may change."""
    texts = []
    for name in sorted(recorded.keys() | requested.keys()):
        path = prefix + name
        before = _numbered(recorded.get(name))
        now = _numbered(requested.get(name))
        if isinstance(before, dict) and isinstance(now, dict):
            texts += differences(before, now, path + ".", free)
        elif before != now and _is_free(path) == free:
            texts.append(f"{path}: {before} -> {now}")
    return texts


def _is_free(path: str) -> bool:
    """Whether a setting, or a part of the recipe that contains it, is in FREE_ON_RESUME."""
    return any(f"{path}.".startswith(f"{name}.") for name in FREE_ON_RESUME)


def _numbered(value: Any) -> Any:
    """A list of objects, such as evals, as a dict by index; any other value unchanged."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {str(i): item for i, item in enumerate(value)}
    return value


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """The settings of a recipe, as plain values, by their full names, such as "optim.lr"."""
    values = _numbered(values)
    if not isinstance(values, dict):
        return {prefix: values}
    settings: dict[str, Any] = {}
    for name, value in values.items():
        settings |= flat(value, f"{prefix}.{name}".removeprefix("."))
    return settings


def as_typed(value: Any) -> str:
    """The value of a setting as a user would type it."""
    if isinstance(value, list):
        return " ".join(map(as_typed, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def defaults(values: dict, kind: type) -> dict:
    """The defaults of the settings in `values`, the plain values of a dataclass of this kind; settings without
    a default are left out.

    A part with a class of its own, such as an objective, has the defaults of that class.
    """
    types = type_hints(kind)
    usual = {}
    for setting in fields(kind):
        name = setting.name
        default = default_of(setting)
        if default is not MISSING:
            usual[name] = to_json(default, types[name])
        parts = _defaults_of_parts(values.get(name), types[name])
        by_default = usual.get(name)  # None for a part that may be absent, such as a hybrid's stem
        if isinstance(parts, dict) and isinstance(by_default, dict) and "class" in by_default:
            parts["class"] = by_default["class"]
        if parts is not None:
            usual[name] = parts
    return usual


def _defaults_of_parts(value: Any, declared: Any) -> dict | list[dict] | None:
    """The defaults of a setting that is a dataclass, or a list of such; None for any other, and for
    a class that vitkit does not define."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        item_type, *_ = get_args(declared)
        return [_defaults_of_part(item, item_type) or {} for item in value]
    return _defaults_of_part(value, declared)


def _defaults_of_part(value: Any, declared: Any) -> dict | None:
    """The defaults of a setting that is a dataclass; None for any other, and for a class that
    vitkit does not define."""
    if not isinstance(value, dict):
        return None
    kind = without_none(declared)
    if "class" in value:
        kind = None
        for package in (models, objectives, evaluation):
            if value["class"] in package.__all__:
                kind = getattr(package, value["class"])
    if not isinstance(kind, type) or not is_dataclass(kind):
        return None
    return defaults(value, kind)
