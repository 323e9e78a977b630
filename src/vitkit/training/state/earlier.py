"""What a run's directory holds of an earlier call: which recipe ran, on which images, and how far it
came."""

import json
from pathlib import Path
from typing import NamedTuple

from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import refuse_special
from vitkit.training.record.values import differences
from vitkit.training.state.checkpoints import checkpoints, step_of
from vitkit.training.state.sealed import read_sealed

MODEL = "model"  # the folder of the finished model, in the run's directory
FINISHED = "finished.json"  # the checksums of that folder's files, the recipe and its images


class Occupied(ValueError):
    """The directory belongs to another run, which must not be touched."""


class Earlier(NamedTuple):
    """What an earlier call left; nothing, if there was none."""

    recipe: dict
    """As recipe.json has it; empty if it is not known."""
    data: dict
    """As data.json has it; empty if it is not known."""
    trained: bool
    """Whether there are trained weights: another recipe must not overwrite them. If there are none,
    the settings were refused, or the run was stopped at once."""


def earlier_call(run_dir: Path) -> Earlier:
    """What an earlier call left in the directory; every rank gets what rank 0 sees."""
    return from_rank_0(lambda: read_earlier(run_dir))


def read_earlier(run_dir: Path) -> Earlier:
    """The same as this process sees it, on one rank alone."""
    for pattern in ("*", "model/*", "checkpoints/*/*"):
        for path in run_dir.glob(pattern):
            refuse_special(path)
    has_steps = any(step_of(checkpoint) > 0 for checkpoint in checkpoints(run_dir))
    trained = has_steps or (run_dir / MODEL).exists()

    # Checkpoints and finished.json repeat both records, with a checksum
    sealed_files = [checkpoint / "state.json" for checkpoint in checkpoints(run_dir)]
    sealed_files.append(run_dir / FINISHED)
    for path in sealed_files:
        try:
            values = read_sealed(path)
            return Earlier(values["recipe"], values["data"], trained)
        except (OSError, ValueError, KeyError):
            continue
    recipe = _read(run_dir / "recipe.json")
    return Earlier(recipe, _read(run_dir / "data.json"), trained)


def _read(path: Path) -> dict:
    """What a JSON file holds; nothing if it is not there, or damaged."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def refuse_other_recipe(run_dir: Path, ran: dict, asked: dict, prefix: str = "") -> None:
    """Raises Occupied, with the differences, if the recipe that ran in a directory is not the one
    that is asked for. With a prefix, "data.", they are that part of a recipe."""
    changed = differences(ran, asked, prefix)
    if changed:
        raise Occupied(other_recipe(run_dir, changed))


def other_recipe(run_dir: Path, changed: list[str]) -> str:
    """The message for a directory in which a recipe ran that differs so from the one asked for."""
    return (
        f"{run_dir} holds a run of another recipe ({'; '.join(changed[:5])}); choose another "
        "--workdir, or remove it"
    )


def refuse_unknown_recipe(run_dir: Path, earlier: Earlier) -> None:
    """Raises Occupied for trained weights of which nobody knows the recipe."""
    if earlier.trained and not earlier.recipe:
        raise Occupied(
            f"{run_dir} holds a trained model, and nothing says by which recipe; choose another "
            "--workdir, or remove it"
        )
