"""The end of a run: the trained model is saved so that everybody can open it."""

from pathlib import Path

from torch import Tensor

from vitkit.models import create
from vitkit.objectives.objective import Objective
from vitkit.system.ranks import from_rank_0, full_tensor
from vitkit.train.log import last_metrics
from vitkit.train.recipe import Facts, Recipe, output_names
from vitkit.train.record import to_json
from vitkit.train.state import State
from vitkit.train.tune import apply_tuning, merged
from vitkit.weights import Classifier, load, save

MODEL = "model"  # the folder, in the run's directory


def is_finished(recipe: Recipe, run_dir: Path, state: State) -> bool:
    """Whether all steps are done and the model is saved."""
    if state.step < recipe.length.n:
        return False
    return from_rank_0(lambda: (run_dir / MODEL / "config.json").exists())


def finish(recipe: Recipe, run_dir: Path, state: State, facts: Facts) -> Classifier:
    """Save the trained model, averaged if there is an average, in `model/`; returns it as it opens
    from there."""
    # Whole weights on every rank; all of them must ask
    weights = {}
    with state.averaged() as learner, learner.deployed():
        for name, tensor in learner.model.state_dict().items():
            weights[name] = full_tensor(tensor).to("cpu", copy=True)  # which is not swapped back

    # Rank 0 saves
    labels = output_names(recipe, facts)
    origin = _origin(recipe, run_dir, state)
    from_rank_0(lambda: _save(recipe, weights, labels, origin, run_dir / MODEL))
    return load(run_dir, quiet=True)


def _save(
    recipe: Recipe, weights: dict[str, Tensor], labels: tuple[str, ...], origin: dict, path: Path
) -> None:
    """Write the model of these weights, with its adapters (LoRA) merged into it."""
    model = create(recipe.model, seed=0)
    apply_tuning(model, recipe.tune)  # makes the adapters, whose weights are among these
    model.load_state_dict(weights)
    model = merged(model)
    activation = recipe.objective.activation()
    save(Classifier(model, recipe.data.preprocessing, labels, activation, origin), path)


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
