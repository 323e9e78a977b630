"""What a run leaves: the finished model, as everybody can open it."""

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

MODEL = "model"  # the folder of a run


def is_finished(recipe: Recipe, run_dir: Path, state: State) -> bool:
    """Whether the run has nothing left to do."""
    if state.step < recipe.length.n:
        return False
    return from_rank_0(lambda: (run_dir / MODEL / "config.json").exists())


def finish(recipe: Recipe, run_dir: Path, state: State, facts: Facts) -> Classifier:
    """Save the trained model, averaged if there is an average, in `model/`; returns it as it opens
    there."""
    with state.averaged() as learner, learner.deployed():
        weights = {}
        for name, tensor in learner.model.state_dict().items():
            weights[name] = full_tensor(tensor).to("cpu", copy=True)
    origin = _origin(recipe, run_dir, state)
    labels = output_names(recipe, facts)
    from_rank_0(lambda: _save(recipe, weights, labels, origin, run_dir / MODEL))
    return load(run_dir, quiet=True)


def _save(
    recipe: Recipe, weights: dict[str, Tensor], labels: tuple[str, ...], origin: dict, path: Path
) -> None:
    """Write the model of these weights, adapters added to what they adapt."""
    model = create(recipe.model, seed=0)
    apply_tuning(model, recipe.tune)
    model.load_state_dict(weights)
    model = merged(model)
    activation = recipe.objective.activation()
    save(Classifier(model, recipe.data.preprocessing, labels, activation, origin), path)


def _origin(recipe: Recipe, run_dir: Path, state: State) -> dict:
    """Where the model comes from, for people."""
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
