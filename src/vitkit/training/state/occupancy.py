"""Whether a run can begin or continue in a directory, asked before other runs are trained for it: those
that choose its settings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import on_this_machine
from vitkit.training.augmenting import as_decided
from vitkit.training.data import RECORDED
from vitkit.training.recipe import Facts, Recipe, resolve
from vitkit.training.record.values import differences, to_json, with_defaults
from vitkit.training.run import refuse_somebodys
from vitkit.training.state.earlier import (
    Earlier,
    Occupied,
    earlier_call,
    other_recipe,
    refuse_unknown_recipe,
)


def refuse_occupied(run_dir: Path, recipes: Sequence[Recipe]) -> None:
    """Raises Occupied if `train` would refuse every one of these recipes in a directory, as far as
    that is known without their images: for a file, for files that no run has written, and for a run
    of another recipe, with what differs. Raises ValueError as `resolve` does."""
    from_rank_0(lambda: refuse_somebodys(on_this_machine(run_dir)))
    earlier = earlier_call(run_dir)
    if not earlier.trained:
        return
    refuse_unknown_recipe(run_dir, earlier)
    changed = [_changed(recipe, earlier, run_dir) for recipe in recipes]
    nearest = min(changed, key=len)
    if nearest:
        raise Occupied(other_recipe(run_dir, nearest))


def _changed(recipe: Recipe, earlier: Earlier, run_dir: Path) -> list[str]:
    """In what a recipe differs from the one that ran, with what only that one's images decide taken
    from its record."""
    ran = with_defaults(earlier.recipe, recipe)

    # The images alone, if nothing says how many there were, or the preprocessing follows from them
    # (training/channels.py)
    recipe = as_decided(recipe, run_dir)
    asked = to_json(recipe)
    is_measured = recipe.model.channels != recipe.data.preprocessing.channels
    if is_measured:
        asked["data"]["preprocessing"] = ran["data"]["preprocessing"]
    if is_measured or not earlier.data.keys() >= RECORDED:
        return differences(ran["data"], asked["data"], "data.")

    # The whole recipe, with as many images as there were
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=ran["precision"])
    broken = earlier.data["skipped"].get("train", [])
    facts = Facts(
        earlier.data["counts"]["train"] - len(broken),
        tuple(earlier.data["labels"]),
        earlier.data["target"],
    )
    return differences(ran, to_json(resolve(recipe, facts)))
