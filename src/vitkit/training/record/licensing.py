"""The licence of the weights that a run begins with: it is noted in the run, because the trained
model is under it too, and the run may be continued where those weights are not."""

from dataclasses import asdict
from pathlib import Path

from vitkit.system.storage.files import write_whole
from vitkit.training.data import Say
from vitkit.training.recipe import Recipe
from vitkit.training.state.sealed import read_sealed, sealed
from vitkit.weights import License, load

LICENSE = "license.json"  # in the run's directory


def record_license(run_dir: Path, license: License | None) -> None:
    """Write down the licence of a run's first weights, None if nobody has said it."""
    values = {"license": None}
    if license is not None:
        values = {"license": asdict(license)}
    write_whole(run_dir / LICENSE, sealed(values).encode())


def license_of_run(recipe: Recipe, run_dir: Path, say: Say) -> License | None:
    """The licence that the trained model is under: that of the weights that it began with. None for
    a model that was trained from scratch, and if nobody knows."""
    if not recipe.init:
        return None
    try:
        values = read_sealed(run_dir / LICENSE)["license"]
    except (OSError, ValueError, KeyError):  # lost or damaged: the weights themselves say it
        return _license_of_weights(recipe.init, say)
    if values is None:
        return None
    return License(**values)


def _license_of_weights(source: str, say: Say) -> License | None:
    """The licence that weights state. If they are gone, says that it is not known."""
    try:
        return load(source, quiet=True).license
    except ValueError as error:
        say(f"the licence of {source} is not known any more ({error}); it is not in the model")
        return None
