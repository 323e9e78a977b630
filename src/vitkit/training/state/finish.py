"""The model of a run, saved so that everybody can open it: at the end in `model/`, and in `best/`
that of the best evaluation so far, if the recipe asks for the best weights.

Which evaluation is the best follows from metrics.jsonl alone, and what is kept is the model as it
would be saved after that step. So a run that was killed keeps and saves the same as one that was
not.
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

BEST = "best"  # the folder of the best models, in the run's directory
SEAL = "best.json"  # with each of them: its step, and the checksums of its files


def is_finished(run_dir: Path, say: Say) -> bool:
    """Whether the directory has a finished model, with or without checkpoints: as it was saved, or
    as its owner edited its description. Reports what was edited, and how damage is repaired."""
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
    except VitkitError:
        return False
    return True


def _changed_files(run_dir: Path) -> list[str] | None:
    """The files of the finished model that are not as the run saved them, or are gone; None if the
    run has not finished. If finished.json is damaged, all files are returned."""
    if not (run_dir / FINISHED).exists():
        return None
    try:
        checksums = read_sealed(run_dir / FINISHED)["sha256"]
    except (OSError, ValueError, KeyError):
        return ["its checksums"]
    return _changed(run_dir / MODEL, checksums)


def _changed(folder: Path, checksums: dict[str, str]) -> list[str]:
    """Names of files that do not have these checksums, or cannot be read."""
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
    """Save the trained model in `model/`, averaged if there is an average, or that of the best
    evaluation if the recipe asks for it; returns it, loaded from there.

    Raises FloatingPointError if its weights are not finite, and VitkitError if the best weights are
    damaged or gone.
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
                f"the best weights, in {folder}, are damaged or gone; remove {run_dir} and train "
                "again"
            )
        classifier = load(folder, quiet=True)
        from_rank_0(lambda: (run_dir / LATEST).unlink(missing_ok=True))
        say(f"{recipe.best} was best at step {step:,}: the model has the weights of that step")
    from_rank_0(lambda: _save(classifier, run_dir, state.record, say))
    return load(run_dir, quiet=True)


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

    # A run that was killed before it wrote finished.json has saved the same model already. Another
    # one is damaged, or its owner changed it: it is kept as model.earlier, model.earlier-2, ...
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
            say(f"what was in {path} is not what the run saves there; it is kept as {earlier}")
        new.rename(path)
        sync(run_dir)
    write_sealed(run_dir / FINISHED, {"sha256": checksums, **record})


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
        raise Diverged(
            f"the trained weights are not finite ({broken[0]}, and {len(broken) - 1} more "
            f"tensors), so there is no model to save; lower `optim.lr` (it is {recipe.optim.lr:g})"
        )

    # A new model of them, so that the state stays as it is, into which adapters (LoRA) are merged
    model = create(recipe.model, seed=0)
    apply_tuning(model, recipe.tune)  # makes the adapters, whose weights are among these
    model.load_state_dict(weights)

    # Where it comes from, for people who meet it without its run
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
    return Classifier(
        merged(model),
        recipe.data.preprocessing,
        output_names(recipe, facts),
        recipe.objective.activation(),
        origin,
        from_rank_0(lambda: license_of(recipe, run_dir, say)),
        pretraining,
    )


# The best so far


def keep_best(run: Run) -> None:
    """Keep the model as it would be saved now, and what it answered, if the evaluation at this step
    is the best so far by the recipe's metric. Raises VitkitError if the evaluations do not measure
    it."""
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
    """Write a model, whole or not at all, and remove all older ones but the one before it, which is for a
    run that is killed now and continues at an earlier step."""
    new = folder.with_suffix(".new")
    for leftover in (new, folder):  # of a run that was killed, or damaged
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
    """Whether the files of a kept model are as they were written."""
    try:
        return not _changed(folder, read_sealed(folder / SEAL)["sha256"])
    except (OSError, ValueError, KeyError):
        return False
