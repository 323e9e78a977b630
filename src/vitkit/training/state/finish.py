"""The saved models of a run: the finished one in `model/`, and with the recipe's `best` that of the best
evaluation so far in `best/`.

The best evaluation depends on metrics.jsonl alone, and the kept model is the one that would be saved after that
step. So an interrupted run keeps and saves the same models as an uninterrupted one.
"""

import shutil
from pathlib import Path

from vitkit.models import create
from vitkit.objectives import Objective
from vitkit.recipes import Facts, Recipe, Say
from vitkit.recipes.settings import output_names
from vitkit.system.errors import BadRun, Diverged, VitkitError
from vitkit.system.processes.ranks import from_rank_0, full_tensor
from vitkit.system.storage.files import sync
from vitkit.system.storage.moving import move_folder
from vitkit.training.evaluation import ANSWERS, LATEST
from vitkit.training.optim import apply_tuning, merged
from vitkit.training.record.metrics import best_step, last_metrics, read_metrics
from vitkit.training.record.values import to_json
from vitkit.training.run import Run
from vitkit.training.state.checkpoints import (
    FINISHED,
    MODEL,
    checkpoints,
    checksum,
    read_sealed,
    write_sealed,
)
from vitkit.training.state.start import license_of
from vitkit.training.state.state import State
from vitkit.weights import Classifier, load, save
from vitkit.weights.licenses import CARD, NAMES

BEST = "best"  # folder of the best models, in the run's directory
SEAL = "best.json"  # file in each of their folders: the step, and the checksums of the other files


def is_finished(run_dir: Path, say: Say) -> bool:
    """Whether the directory has an intact finished model, with or without checkpoints; its user may have edited
    its description. Prints which files were edited, and how damage is repaired."""
    changed = from_rank_0(lambda: _changed_files(run_dir))
    if changed is None:  # the run has not finished
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
    """Whether the finished model's weights are those that the run saved, and it can be opened. The user may
    edit its config.json, preprocessor_config.json, card and licence."""
    changed = _changed_files(run_dir)
    if not changed:
        return changed is not None and (run_dir / MODEL).is_dir()
    if any(not name.endswith(".json") or not (run_dir / MODEL / name).exists() for name in changed):
        return False
    try:
        load(run_dir / MODEL, quiet=True)
    except VitkitError:
        return False
    return True


def _changed_files(run_dir: Path) -> list[str] | None:
    """The files of the finished model that have changed or are missing; None if the run has not finished.
    If finished.json is damaged, its checksums count as a changed file."""
    if not (run_dir / FINISHED).exists():
        return None
    try:
        checksums = read_sealed(run_dir / FINISHED)["sha256"]
    except (OSError, ValueError, KeyError):
        return ["its checksums"]
    return _changed(run_dir / MODEL, checksums)


def _changed(folder: Path, checksums: dict[str, str]) -> list[str]:
    """The names of files whose checksum differs from the given one, or that cannot be read."""
    changed = []
    for name, expected in checksums.items():
        try:
            is_same = checksum(folder / Path(name).name) == expected
        except OSError:
            is_same = False
        if not is_same:
            changed.append(name)
    return changed


def finish(recipe: Recipe, run_dir: Path, state: State, facts: Facts, say: Say) -> Classifier:
    """Save the trained model in `model/`: the average of the weights if there is one, or with the recipe's
    `best` the model of the best evaluation; returns it, loaded from there.

    Raises FloatingPointError if its weights are not finite, and VitkitError if the best weights are
    damaged or missing.
    """
    step = None
    if recipe.best:
        lines = from_rank_0(lambda: read_metrics(run_dir / "metrics.jsonl"))
        step = best_step(lines, recipe.best)
    if step is None:
        classifier = trained(recipe, run_dir, state, facts, say)
    else:
        folder = _folder_of_best(run_dir, step)
        if not from_rank_0(lambda: _is_whole(folder)):
            raise BadRun(
                f"the best weights, in {folder}, are damaged or missing; remove {run_dir} and train "
                "again"
            )
        classifier = load(folder, quiet=True)
        from_rank_0(lambda: (run_dir / LATEST).unlink(missing_ok=True))
        say(f"{recipe.best} was best at step {step:,}: the model has the weights of that step")
    from_rank_0(lambda: _save(classifier, run_dir, state.record, say))
    return load(run_dir, quiet=True)


def _save(classifier: Classifier, run_dir: Path, record: dict, say: Say) -> None:
    """Write model/ atomically; then finished.json: the checksums of its files, and the `record` of the run,
    which is needed after its checkpoints are deleted."""
    path = run_dir / MODEL
    new = run_dir / f"{MODEL}.new"
    shutil.rmtree(new, ignore_errors=True)  # left by a run that was killed
    save(classifier, new)
    # The user may edit the card and the licence, so they have no checksums
    names = sorted(file.name for file in new.iterdir() if file.name not in (CARD, *NAMES))
    checksums = {name: checksum(new / name) for name in names}

    # An equal model is from a run that was killed before it wrote finished.json. A different one is
    # damaged, or the user has changed it: it is kept as model.earlier, model.earlier-2, ...
    if not _changed(path, checksums):
        shutil.rmtree(new)
    else:
        if path.exists():
            earlier = path.with_name(f"{MODEL}.earlier")
            number = 1
            while earlier.exists():
                number += 1
                earlier = path.with_name(f"{MODEL}.earlier-{number}")
            move_folder(path, earlier)
            say(f"{path} differs from the model that the run saves there; it is kept as {earlier}")
        new.rename(path)
        sync(run_dir)
    write_sealed(run_dir / FINISHED, {"sha256": checksums, **record})


def trained(recipe: Recipe, run_dir: Path, state: State, facts: Facts, say: Say) -> Classifier:
    """The current model as a Classifier, to be saved. Raises FloatingPointError if its weights are not
    finite."""
    # Gather whole weights. Every rank calls full_tensor, in which the ranks exchange their shards
    weights = {}
    pretraining = {}  # weights that the objective adds, and that are saved beside the model
    with state.averaged() as learner, learner.deployed():
        for name, tensor in learner.model.state_dict().items():
            # Keeps its values after the context
            weights[name] = full_tensor(tensor).to("cpu", copy=True)
        for name, tensor in learner.state_dict().items():
            if name.split(".")[0] in learner.travels:
                pretraining[name] = full_tensor(tensor).to("cpu", copy=True)
    broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if broken:
        raise Diverged(
            f"the trained weights are not finite ({broken[0]}, and {len(broken) - 1} more "
            f"tensors), so there is no model to save; lower `optim.lr` (it is {recipe.optim.lr:g})"
        )

    # Load them into a new model, so that the state does not change, and merge its adapters (LoRA)
    model = create(recipe.model, seed=0)
    apply_tuning(model, recipe.tune)  # adds the adapters, whose weights are among the loaded ones
    model.load_state_dict(weights)

    # The provenance of the model, for users who do not have its run
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
    origin["groups"] = state.record["data"].get("groups", "none")
    if held_out := state.record["data"].get("made_fingerprint"):
        origin["held_out"] = held_out
    if recipe.data.masks:
        origin["masks"] = recipe.data.masks
        origin["legend"] = state.record["data"]["legend"]
    return Classifier(
        merged(model),
        recipe.data.preprocessing,
        output_names(recipe, facts),
        recipe.objective.activation(),
        origin,
        from_rank_0(lambda: license_of(recipe, run_dir, say)),
        pretraining,
    )


# The best model so far


def keep_best(run: Run) -> None:
    """Save the current model, and its answers, if the evaluation at this step is the best so far by the
    recipe's `best` metric. Raises VitkitError if the evaluations do not measure it."""
    name = run.recipe.best
    step = run.state.step
    measured_now = any(at == step for at, _ in run.log.evaluated)
    if not name or not measured_now:
        return
    folder = _folder_of_best(run.run_dir, step)

    def is_new_best() -> bool:
        lines = read_metrics(run.run_dir / "metrics.jsonl")
        return best_step(lines, name) == step and not _is_whole(folder)

    def keep() -> None:
        if (run.run_dir / LATEST).exists():
            (run.run_dir / LATEST).replace(run.run_dir / ANSWERS)
        _write_best(classifier, folder, step)

    if from_rank_0(is_new_best):
        with run.log.meter.pausing():
            classifier = trained(run.recipe, run.run_dir, run.state, run.data.facts, lambda _: None)
            from_rank_0(keep)


def _write_best(classifier: Classifier, folder: Path, step: int) -> None:
    """Write a model atomically, and remove all older ones except the previous one, which is needed if the run is
    killed now and continues at an earlier step."""
    new = folder.with_suffix(".new")
    for leftover in (new, folder):  # left by a run that was killed, or damaged
        shutil.rmtree(leftover, ignore_errors=True)
    save(classifier, new)
    checksums = {file.name: checksum(file) for file in sorted(new.iterdir())}
    write_sealed(new / SEAL, {"step": step, "sha256": checksums})
    new.rename(folder)
    sync(folder.parent)
    others = sorted(path for path in folder.parent.glob("step-*") if path != folder)
    for old in others[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def _folder_of_best(run_dir: Path, step: int) -> Path:
    return run_dir / BEST / f"step-{step:08d}"


def _is_whole(folder: Path) -> bool:
    """Whether the files of a kept model have their checksums."""
    try:
        return not _changed(folder, read_sealed(folder / SEAL)["sha256"])
    except (OSError, ValueError, KeyError):
        return False
