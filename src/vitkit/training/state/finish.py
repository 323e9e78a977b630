"""The end of a run: the trained model is saved so that everybody can open it."""

import shutil
from pathlib import Path

from torch import Tensor

from vitkit.models import Model, create
from vitkit.objectives import Objective
from vitkit.system.processes.ranks import from_rank_0, full_tensor
from vitkit.system.storage.files import sync, write_whole
from vitkit.training.data import Say
from vitkit.training.evaluation import ANSWERS, LATEST
from vitkit.training.recipe import Facts, Recipe, output_names
from vitkit.training.record.licensing import license_of_run
from vitkit.training.record.log import last_metrics, read_metrics
from vitkit.training.record.values import to_json
from vitkit.training.run import Run
from vitkit.training.state.best import best_step, is_best, keep, kept
from vitkit.training.state.checkpoints import checkpoints, checksum
from vitkit.training.state.earlier import FINISHED, MODEL
from vitkit.training.state.sealed import read_sealed, sealed
from vitkit.training.state.state import State
from vitkit.training.tune import apply_tuning, merged
from vitkit.weights import CARD, NAMES, Classifier, load, save


def is_finished(run_dir: Path, say: Say) -> bool:
    """Whether the directory has a finished model, with or without checkpoints: as it was saved, or
    as its owner edited its description. Says what was edited, and what is done about damage."""
    changed = from_rank_0(lambda: _changed_files(run_dir))
    if changed is None:  # it was never finished
        return False
    if from_rank_0(lambda: model_is_intact(run_dir)):
        if changed:
            say(f"{run_dir / MODEL}: {' and '.join(changed)} was edited since the run saved it")
        return True
    remedy = "it is saved again from the newest checkpoint"
    if not from_rank_0(lambda: checkpoints(run_dir)):
        remedy = "there is no checkpoint, so it is trained again from the start"
    names = " and ".join(changed) or FINISHED
    say(f"the finished model in {run_dir / MODEL} is damaged or removed ({names}); {remedy}")
    return False


def model_is_intact(run_dir: Path) -> bool:
    """Whether the finished model's weights are those that the run saved, and it can be opened. Its
    config.json, preprocessor_config.json, card and licence are its owner's to edit."""
    changed = _changed_files(run_dir)
    if not changed:
        return changed is not None and (run_dir / MODEL).is_dir()
    if any(not name.endswith(".json") or not (run_dir / MODEL / name).exists() for name in changed):
        return False
    try:
        load(run_dir / MODEL, quiet=True)
    except ValueError:
        return False
    return True


def _changed_files(run_dir: Path) -> list[str] | None:
    """The files of the finished model that are not as the run saved them, or are gone; None if the
    run has not finished. If finished.json is damaged, nobody can tell, so all of them."""
    file = run_dir / FINISHED
    if not file.exists():
        return None
    try:
        expected = read_sealed(file)["sha256"]
    except (OSError, ValueError, KeyError):
        return ["its checksums"]
    return [
        name
        for name, sha in expected.items()
        if _checksum(run_dir / MODEL / Path(name).name) != sha
    ]


def _checksum(file: Path) -> str:
    """A file's checksum; "" if it cannot be read."""
    try:
        return checksum(file)
    except OSError:
        return ""


def finish(recipe: Recipe, run_dir: Path, state: State, facts: Facts, say: Say) -> Classifier:
    """Save the trained model in `model/`, averaged if there is an average, or that of the best
    evaluation if the recipe asks for it; returns it, loaded from there.

    Raises FloatingPointError if its weights are not finite.
    """
    step = None
    if recipe.best:
        lines = from_rank_0(lambda: read_metrics(run_dir / "metrics.jsonl"))
        step = best_step(lines, recipe.best)
    if step is None:
        classifier = trained(recipe, run_dir, state, facts, say)
    else:
        classifier = kept(run_dir, step)
        from_rank_0(lambda: (run_dir / LATEST).unlink(missing_ok=True))
        say(f"{recipe.best} was best at step {step:,}: the model has the weights of that step")
    from_rank_0(lambda: _save(classifier, run_dir, state.record, say))
    return load(run_dir, quiet=True)


def keep_best(run: Run) -> None:
    """Keep the model as it would be saved now, if the evaluation at this step is the best so far by
    the recipe's metric."""
    recipe = run.recipe
    step = run.state.step
    measured_now = any(at == step for at, _ in run.log.evaluated)
    if not recipe.best or not measured_now or not is_best(run.run_dir, recipe.best, step):
        return
    with run.log.meter.pausing():
        classifier = trained(recipe, run.run_dir, run.state, run.data.facts, lambda _: None)
        from_rank_0(lambda: _keep(classifier, run.run_dir, step))


def _keep(classifier: Classifier, run_dir: Path, step: int) -> None:
    """Keep a model, and what it answered."""
    if (run_dir / LATEST).exists():
        (run_dir / LATEST).replace(run_dir / ANSWERS)
    keep(classifier, run_dir, step)


def trained(recipe: Recipe, run_dir: Path, state: State, facts: Facts, say: Say) -> Classifier:
    """The model as it is now, to be saved. Raises FloatingPointError if its weights are not
    finite."""
    # Whole weights. Every rank calls full_tensor: the ranks exchange their shards in it
    weights = {}
    pretraining = {}  # what the objective added, and is saved beside the model
    with state.averaged() as learner, learner.deployed():
        for name, tensor in learner.model.state_dict().items():
            weights[name] = full_tensor(tensor).to("cpu", copy=True)  # which is not swapped back
        for name, tensor in learner.state_dict().items():
            if name.split(".")[0] in learner.travels:
                pretraining[name] = full_tensor(tensor).to("cpu", copy=True)
    broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if broken:
        raise FloatingPointError(
            f"the trained weights are not finite ({broken[0]}, and {len(broken) - 1} more tensors), "
            f"so there is no model to save; lower --optim.lr (it is {recipe.optim.lr:g})"
        )

    labels = output_names(recipe, facts)
    origin = _origin(recipe, run_dir, state)
    license = from_rank_0(lambda: license_of_run(recipe, run_dir, say))
    return Classifier(
        _without_adapters(recipe, weights),
        recipe.data.preprocessing,
        labels,
        recipe.objective.activation(),
        origin,
        license,
        pretraining,
    )


def _without_adapters(recipe: Recipe, weights: dict[str, Tensor]) -> Model:
    """The model of these weights, with its adapters (LoRA) merged into it. It is a new one, so that
    the state stays as it is."""
    model = create(recipe.model, seed=0)
    apply_tuning(model, recipe.tune)  # makes the adapters, whose weights are among these
    model.load_state_dict(weights)
    return merged(model)


def _save(classifier: Classifier, run_dir: Path, record: dict, say: Say) -> None:
    """Write model/, whole or not at all; then finished.json: the checksums of its files, and the
    `record` of the run, which outlives its checkpoints."""
    path = run_dir / MODEL
    new = run_dir / f"{MODEL}.new"
    shutil.rmtree(new, ignore_errors=True)  # of a run that was killed
    save(classifier, new)
    # The card and the licence are their owner's to change, so they are not among them
    names = sorted(file.name for file in new.iterdir() if file.name not in (CARD, *NAMES))
    checksums = {name: checksum(new / name) for name in names}

    # A run that was killed before it wrote finished.json has saved the same model already
    if all(_checksum(path / name) == sha for name, sha in checksums.items()):
        shutil.rmtree(new)
    else:
        _set_aside(path, say)
        new.rename(path)
        sync(run_dir)
    write_whole(run_dir / FINISHED, sealed({"sha256": checksums, **record}).encode())


def _set_aside(path: Path, say: Say) -> None:
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
    say(f"what was in {path} is not what the run saves there; it is kept as {earlier}")


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
    if held_out := state.record["data"].get("made_fingerprint"):
        origin["held_out"] = held_out
    return origin
