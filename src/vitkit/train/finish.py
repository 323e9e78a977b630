"""The end of a run: the trained model is saved so that everybody can open it."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from vitkit.models import create
from vitkit.objectives.objective import Objective
from vitkit.system.files import write_whole
from vitkit.system.ranks import from_rank_0, full_tensor
from vitkit.train.checkpoints import checkpoints, checksum
from vitkit.train.data import Say
from vitkit.train.earlier import FINISHED, MODEL
from vitkit.train.log import last_metrics
from vitkit.train.recipe import Facts, Recipe, output_names
from vitkit.train.record import to_json
from vitkit.train.sealed import read_sealed, sealed
from vitkit.train.state import State
from vitkit.train.tune import apply_tuning, merged
from vitkit.weights import Classifier, load, save
from vitkit.weights.replacing import CARD


def is_finished(run_dir: Path, say: Say) -> bool:
    """Whether the directory has a finished model as it was saved, with or without checkpoints. If
    it has one that is not as it was saved, says what is done about it."""
    if from_rank_0(lambda: model_is_intact(run_dir)):
        return True
    if from_rank_0(lambda: (run_dir / FINISHED).exists()):
        remedy = "it is saved again from the newest checkpoint"
        if not from_rank_0(lambda: checkpoints(run_dir)):
            remedy = "there is no checkpoint, so it is trained again from the start"
        say(
            f"the finished model in {run_dir / MODEL} is damaged or removed; {remedy}. What is left "
            f"of it is kept as {MODEL}.earlier"
        )
    return False


def model_is_intact(run_dir: Path) -> bool:
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
    """Save the trained model, averaged if there is an average, in `model/`; returns it, loaded from
    there.

    Raises FloatingPointError if its weights are not finite.
    """
    # Whole weights. Every rank calls full_tensor: the ranks exchange their shards in it
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

    labels = output_names(recipe, facts)
    origin = _origin(recipe, run_dir, state)
    from_rank_0(lambda: _save(recipe, weights, labels, origin, run_dir, state.record))
    return load(run_dir, quiet=True)


def _save(
    recipe: Recipe,
    weights: dict[str, Tensor],
    labels: tuple[str, ...],
    origin: dict,
    run_dir: Path,
    record: dict,
) -> None:
    """Write the model of these weights, with its adapters (LoRA) merged into it; then finished.json:
    the checksums of its files, and the `record` of the run, which outlives its checkpoints."""
    # The adapters are merged in a new model, so that the state stays as it is
    model = create(recipe.model, seed=0)
    apply_tuning(model, recipe.tune)  # makes the adapters, whose weights are among these
    model.load_state_dict(weights)
    model = merged(model)
    activation = recipe.objective.activation()
    path = run_dir / MODEL
    _set_aside(path)
    save(Classifier(model, recipe.data.preprocessing, labels, activation, origin), path)
    # The card is its owner's to rewrite, so it is not among them
    names = sorted(file.name for file in path.iterdir() if file.name != CARD)
    finished = {"sha256": _checksums(path, names), **record}
    write_whole(run_dir / FINISHED, sealed(finished).encode())


def _set_aside(path: Path) -> None:
    """Keep a model that is there already as model.earlier, model.earlier-2, ...: it is damaged, or
    its owner changed it."""
    if not path.exists():
        return
    earlier = path.with_name(f"{path.name}.earlier")
    number = 1
    while earlier.exists():
        number += 1
        earlier = path.with_name(f"{path.name}.earlier-{number}")
    path.rename(earlier)


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
