"""The end of a run: the trained model is saved so that everybody can open it."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from vitkit.models import create
from vitkit.objectives.objective import Objective
from vitkit.system.files import write_whole
from vitkit.system.ranks import from_rank_0, full_tensor
from vitkit.train.checkpoints import checksum
from vitkit.train.log import last_metrics
from vitkit.train.recipe import Facts, Recipe, output_names
from vitkit.train.record import to_json
from vitkit.train.sealed import read_sealed, sealed
from vitkit.train.state import State
from vitkit.train.tune import apply_tuning, merged
from vitkit.weights import Classifier, load, save

MODEL = "model"  # the folder, in the run's directory
FINISHED = "finished.json"  # the checksums of that folder's files
UNCHECKED = "README.md"  # the card, which its owner may rewrite


def is_finished(recipe: Recipe, run_dir: Path, state: State) -> bool:
    """Whether all steps are done, and the model is saved and as it was saved."""
    if state.step < recipe.length.n:
        return False
    return from_rank_0(lambda: _model_is_intact(run_dir))


def _model_is_intact(run_dir: Path) -> bool:
    """Whether the files of the finished model have the checksums that finished.json has of them."""
    try:
        expected = read_sealed(run_dir / FINISHED)["sha256"]
        return _checksums(run_dir / MODEL, expected) == expected
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The checksum of each of these files. Raises OSError."""
    return {name: checksum(folder / Path(name).name) for name in names}


def finish(recipe: Recipe, run_dir: Path, state: State, facts: Facts) -> Classifier:
    """Save the trained model, averaged if there is an average, in `model/`; returns it as it opens
    from there.

    Raises FloatingPointError if its weights are not finite.
    """
    # Whole weights on every rank; all of them must ask
    weights = {}
    with state.averaged() as learner, learner.deployed():
        for name, tensor in learner.model.state_dict().items():
            weights[name] = full_tensor(tensor).to("cpu", copy=True)  # which is not swapped back
    broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if broken:
        raise FloatingPointError(
            f"the trained weights are not finite ({broken[0]}, and {len(broken) - 1} more tensors), "
            f"so there is no model to save; lower --optim.lr (it is {recipe.optim.lr:g})"
        )

    # Rank 0 saves
    labels = output_names(recipe, facts)
    origin = _origin(recipe, run_dir, state)
    from_rank_0(lambda: _save(recipe, weights, labels, origin, run_dir))
    return load(run_dir, quiet=True)


def _save(
    recipe: Recipe, weights: dict[str, Tensor], labels: tuple[str, ...], origin: dict, run_dir: Path
) -> None:
    """Write the model of these weights, with its adapters (LoRA) merged into it; then the checksums
    of its files."""
    model = create(recipe.model, seed=0)
    apply_tuning(model, recipe.tune)  # makes the adapters, whose weights are among these
    model.load_state_dict(weights)
    model = merged(model)
    activation = recipe.objective.activation()
    path = run_dir / MODEL
    save(Classifier(model, recipe.data.preprocessing, labels, activation, origin), path)
    names = sorted(file.name for file in path.iterdir() if file.name != UNCHECKED)
    write_whole(run_dir / FINISHED, sealed({"sha256": _checksums(path, names)}).encode())


def _origin(recipe: Recipe, run_dir: Path, state: State) -> dict:
    """Where the model comes from, for people who meet it without its run."""
    origin = {
        "recipe": recipe.name,
        "data": recipe.data.source,
        "seed": recipe.seed,
        "steps": state.step,
        "objective": to_json(recipe.objective, Objective),
        "metrics": {name: metric.text() for name, metric in last_metrics(run_dir).items()},
    }
    if recipe.init:
        origin["init"] = recipe.init
    origin["split_seed"] = recipe.data.split_seed
    return origin
