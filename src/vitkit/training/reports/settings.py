"""A run's recipe as a table: first what differs from the defaults."""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from vitkit import evaluation, models, objectives
from vitkit.inspection import Block, folded, paragraph, section, table
from vitkit.training.recipe import Recipe
from vitkit.training.record.reading import as_typed, flat
from vitkit.training.record.values import default_of, to_json, without_none

NO_DEFAULT = "none"


def settings_section(recipe: dict) -> Block:
    """Every setting of a recipe, as recipe.json has it: those that differ from their defaults, and
    folded the others."""
    ours = flat(recipe)
    usual = flat(defaults(recipe, Recipe))
    different = []
    same = []
    for name, value in ours.items():
        text = as_typed(value)
        default = NO_DEFAULT
        if name in usual:
            default = as_typed(usual[name])
        if name in usual and text == default:
            same.append((name, text))
        else:
            different.append((name, text, default))
    return section(
        "Recipe",
        paragraph("These settings differ from their defaults, or have none."),
        table(different, ("setting", "value", "default"), wraps=True),
        folded(f"{len(same):,} other settings, at their defaults", table(same, wraps=True)),
    )


def defaults(values: dict, kind: type) -> dict:
    """The defaults of the settings in `values`, which is a dataclass of this kind as `to_json` makes
    it; a setting without a default is left out.

    A part of another class than its setting's type, such as an objective, has the defaults of its own
    class.
    """
    types = get_type_hints(kind)
    usual = {}
    for setting in fields(kind):
        name = setting.name
        default = default_of(setting)
        if default is not MISSING:
            usual[name] = to_json(default, types[name])
        parts = _parts(values.get(name), types[name])
        by_default = usual.get(name)  # None for a part that may be absent, such as a hybrid's stem
        if isinstance(parts, dict) and isinstance(by_default, dict) and "class" in by_default:
            parts["class"] = by_default["class"]
        if parts is not None:
            usual[name] = parts
    return usual


def _parts(value: Any, declared: Any) -> dict | list[dict] | None:
    """The defaults of a setting that is a dataclass, or a list of such; None of any other."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        item_type, *_ = get_args(declared)
        return [_parts(item, item_type) or {} for item in value]
    if not isinstance(value, dict):
        return None
    kind = without_none(declared)
    if "class" in value:
        kind = _class(value["class"])
    if not is_dataclass(kind):
        return None
    return defaults(value, kind)


def _class(name: str) -> type | None:
    """A class by the name that recipe.json has for it; None for one of somebody else's."""
    for room in (models, objectives, evaluation):
        if name in room.__all__:
            return getattr(room, name)
    return None
