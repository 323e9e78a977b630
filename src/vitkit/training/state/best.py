"""The best weights of a run by a metric (`best`), kept in `best/` until the run ends and saves them as its
model.

Which evaluation was the best follows from metrics.jsonl alone, and what is kept is the model as it would be
saved after that step. So a run that was killed keeps and saves the same as one that was not.
"""

import shutil
from pathlib import Path

from vitkit.evaluation import COUNT, Eval, Metric
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import sync, write_whole
from vitkit.training.data import RunData
from vitkit.training.recipe import Recipe
from vitkit.training.record.log import read_metrics
from vitkit.training.state.checkpoints import checksum
from vitkit.training.state.sealed import read_sealed, sealed
from vitkit.weights import Classifier, load, save

FOLDER = "best"  # in the run's directory
UNKNOWN = ("...",)  # the figures of an evaluator that does not say which it measures
SEAL = "best.json"  # with each model there: its step, and the checksums of its files


def check_best(recipe: Recipe, data: RunData) -> None:
    """Raises ValueError if no evaluation of a resolved recipe will measure its `best`, as far as that
    is known before the first step: on which images the evaluators measure, and what, if they say it
    (`figures`)."""
    if not recipe.best:
        return
    known = []
    for each in recipe.evals:
        parts = list(data.held_out)
        if each.data:
            parts = [each.images]
        figures = getattr(each.evaluator, "figures", UNKNOWN)
        for part in parts:
            if figures == UNKNOWN and recipe.best.startswith(_named(each, "", part)):
                return
            known += [_named(each, figure, part) for figure in figures]
    if recipe.best not in known:
        raise ValueError(_not_measured(recipe.best, known))


def _named(each: Eval, figure: str, part: str) -> str:
    """What a figure of an evaluator is called in a run."""
    return each.named(Metric(figure, 0, COUNT), part).name


def _not_measured(name: str, measured: list[str]) -> str:
    """The message for a metric that is not among those that a run measures, which are named."""
    text = f"--best {name}: the run does not measure that; "
    if measured:
        text += f"choose from {', '.join(measured)}"
    else:
        text += "nothing measures it"
    on_val = [each for each in measured if each.startswith("val/")]
    if name.startswith("val/") and not on_val:
        text += ". --data.parts three holds training images out, as val"
    return text


def best_step(lines: list[dict], name: str) -> int | None:
    """The step at which a metric was best, the first of equal ones, by the lines of metrics.jsonl; None
    before the first evaluation. Raises ValueError if the evaluations do not measure it, or none of its
    values is better than another."""
    best: Metric | None = None
    step = None
    measured: dict[str, Metric] = {}
    for line in lines:
        metrics = line.get("metrics", {})
        measured |= metrics
        metric = metrics.get(name)
        if metric is None or metric.unit.better == "neither":
            continue
        if best is None or metric.beats(best):
            best = metric
            step = line["step"]
    if measured and best is None:
        names = [each.name for each in measured.values() if each.unit.better != "neither"]
        raise ValueError(_not_measured(name, names))
    return step


def up_to_best(lines: list[dict], name: str) -> list[dict]:
    """The lines up to the evaluation whose weights became the model: all, if `name` is empty or was not
    measured yet."""
    if not name:
        return lines
    step = best_step(lines, name)
    if step is None:
        return lines
    return [line for line in lines if line["step"] <= step]


def primary_of(lines: list[dict], name: str) -> Metric | None:
    """The metric by which runs are compared, at the evaluation at which metric `name` was best; at the
    last one if `name` is empty. None if nothing was measured; raises ValueError as `best_step`."""
    for line in reversed(up_to_best(lines, name)):
        if line.get("primary"):
            return line["metrics"][line["primary"]]
    return None


def is_best(run_dir: Path, name: str, step: int) -> bool:
    """Whether the evaluation at a step is the best so far, and its weights are not kept yet. Every
    rank gets the same answer. Raises ValueError as `best_step`."""
    return from_rank_0(lambda: _is_best(run_dir, name, step))


def _is_best(run_dir: Path, name: str, step: int) -> bool:
    if best_step(read_metrics(run_dir / "metrics.jsonl"), name) != step:
        return False
    return not _is_whole(_folder(run_dir, step))


def _folder(run_dir: Path, step: int) -> Path:
    return run_dir / FOLDER / f"step-{step:08d}"


def _is_whole(folder: Path) -> bool:
    """Whether the files of a kept model are as they were written."""
    try:
        checksums = read_sealed(folder / SEAL)["sha256"]
        return all(checksum(folder / Path(name).name) == sha for name, sha in checksums.items())
    except (OSError, ValueError, KeyError):
        return False


def keep(classifier: Classifier, run_dir: Path, step: int) -> None:
    """Keep a model as the best one, whole or not at all, and the one before it; rank 0 does it. The
    one before is for a run that is killed now, and goes on at an earlier step."""
    final = _folder(run_dir, step)
    new = final.with_suffix(".new")
    for folder in (new, final):  # of a run that was killed, or damaged
        shutil.rmtree(folder, ignore_errors=True)
    save(classifier, new)
    checksums = {file.name: checksum(file) for file in sorted(new.iterdir())}
    write_whole(new / SEAL, sealed({"step": step, "sha256": checksums}).encode())
    new.rename(final)
    sync(final.parent)
    others = sorted(path for path in final.parent.glob("step-*") if path != final)
    for old in others[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def kept(run_dir: Path, step: int) -> Classifier:
    """The best model, of this step. Raises ValueError if it is damaged or gone."""
    folder = _folder(run_dir, step)
    if not from_rank_0(lambda: _is_whole(folder)):
        raise ValueError(
            f"the best weights, in {folder}, are damaged or gone; remove {run_dir} and train again"
        )
    return load(folder, quiet=True)
