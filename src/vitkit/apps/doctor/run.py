"""`vitkit doctor --run`: checks of a run's record: learning rate, gradients and data."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitkit.apps.doctor.finding import Fact
from vitkit.data import leads_elsewhere
from vitkit.system.functions.steps import Placeholder, step
from vitkit.training import Recorded, read_run

WAITS = 0.25  # share of the time spent waiting for data from which a run is input-bound
CLIPPED = 0.9  # share of clipped gradients from which nearly all are clipped
FAR = (
    3  # ratio of the median norm to the limit from which clipping matters; below it shortens little
)
DIVERGED = 1.5  # ratio of the last loss to the smallest from which training has diverged
RESTLESS = (
    0.5  # ratio of the later losses' standard deviation to their mean from which they are noisy
)
FEW = 8  # fewest points of a curve for statements about its shape


def examine_run(run_dir: Path) -> Iterator[Fact]:
    """The findings in recipe.json and metrics.jsonl. Raises VitkitError if the directory is not a run."""
    run = read_run(run_dir)
    lines = [line for line in run.lines if line["event"] == "training"]
    yield _progress(run)
    if lines:
        yield _loss(run, [line["loss"] for line in lines])
        yield _gradients(run, [line["norm"] for line in lines])
        yield _data(run, [line["data_wait"] for line in lines])
    yield _skipped(run)
    yield from _held_out(run)
    yield from _preprocessing(run)


def _progress(run: Recorded) -> Fact:
    """The progress of the run."""
    done = run.steps()
    total = int(float(run.recipe["length"].split()[0]))
    value = f"{done:,} of {total:,} steps of {run.recipe['batch']:,}"
    advice = ""
    if not total:
        return Fact("run", "a quick one: what was fine-tuned is in fine-tuned/")
    if done < total:
        advice = f"{run.run_dir} is not finished: the same command as before continues it"
    return Fact("run", value, advice)


def _loss(run: Recorded, losses: Sequence[float]) -> Fact:
    """Whether the training loss falls, and how steadily."""
    first, last = losses[0], _mean(losses[-3:])
    value = f"{first:.4g} at first, {last:.4g} at last"
    rate = run.recipe["optim"]["lr"]
    advice = ""
    later = losses[len(losses) // 2 :]
    steady = [loss for loss in losses if math.isfinite(loss)]
    if not math.isfinite(last):
        advice = f"the loss is not a number any more: lower `optim.lr`, which is {rate:g}, tenfold"
    elif len(losses) >= FEW and last > max(DIVERGED * min(steady), first * 1.05):
        advice = (
            f"the loss has risen from {min(steady):.4g} to {last:.4g}, so the rate is too high: "
            f"lower `optim.lr`, which is {rate:g}, three- to tenfold, or lengthen `optim.warmup`"
        )
    elif len(losses) >= FEW and _deviation(later) > RESTLESS * abs(_mean(later)) and last > 0.1:
        advice = (
            f"the loss jumps up and down: lower `optim.lr`, which is {rate:g}, threefold, or take "
            f"a larger `batch` than {run.recipe['batch']}"
        )
    elif len(losses) >= FEW and last > 0.97 * first:
        advice = (
            f"the loss hardly falls: look at the labels (vitkit data review), then raise "
            f"`optim.lr`, which is {rate:g}, threefold"
        )
    return Fact("training loss", value, advice)


def _gradients(run: Recorded, norms: Sequence[float]) -> Fact:
    """The size of the gradients, and how often they are clipped."""
    finite = sorted(norm for norm in norms if math.isfinite(norm))
    if not finite:
        return Fact("gradient norm", "never a number")
    clip = run.recipe["optim"]["clip"]
    value = f"{finite[len(finite) // 2]:.3g} in the middle, {finite[-1]:.3g} at most"
    advice = ""
    if clip:
        share = sum(norm > clip for norm in finite) / len(finite)
        value += f"; {share:.0%} above optim.clip, {clip:g}"
        if share > CLIPPED and finite[len(finite) // 2] > FAR * clip and len(norms) >= FEW:
            advice = (
                f"nearly every gradient is clipped to {clip:g}, so its size is lost and "
                f"`optim.lr` alone decides the step: lower it, or raise `optim.clip`"
            )
    return Fact("gradient norm", value, advice)


def _data(run: Recorded, waits: Sequence[float]) -> Fact:
    """Whether the model waits for its images."""
    wait = _mean(waits)
    advice = ""
    if wait > WAITS:
        workers = run.recipe["data"]["workers"]
        source = run.recipe["data"]["source"]
        advice = (
            f"the model waits for images {wait:.0%} of the time: raise `data.workers` (it is "
            f"{workers}), give `data.keep_decoded` the memory in GB that the images need, or "
            f"shrink them once with {step('pack', source, Placeholder('dest'), side=256)}"
        )
    return Fact("waiting for data", f"{wait:.0%} of the time", advice)


def _skipped(run: Recorded) -> Fact:
    """Steps that were skipped because they were not finite."""
    skipped = sum(line["event"] == "skipped" for line in run.lines)
    rollbacks = sum(line["event"] == "rollback" for line in run.lines)
    value = f"{skipped:,}, and {rollbacks:,} times back to a checkpoint"
    advice = ""
    if rollbacks or skipped > 2:
        rate = run.recipe["optim"]["lr"]
        advice = (
            f"{skipped:,} steps were not finite: lower `optim.lr`, which is {rate:g}, or compute "
            f"in `precision='float32'`"
        )
    return Fact("skipped steps", value, advice)


def _held_out(run: Recorded) -> Iterator[Fact]:
    """Whether the model became worse on held-out images during training."""
    points = run.points()
    if not points:
        yield Fact("held-out images", "none", "give DATA a test part, for measuring the accuracy")
        return
    name, measured = next(iter(points.items()))
    last_step, last = measured[-1]
    best_step, best = last_step, last
    for number, metric in measured:
        if metric.beats(best):
            best_step, best = number, metric
    advice = ""
    beyond = last.interval and not last.interval[0] <= best.value <= last.interval[1]
    if beyond:
        advice = (
            f"{name} was better at step {best_step:,} ({best.unit.text(best.value)}) than at the "
            f"end: a shorter `length`, or more augmentation, reduces overfitting"
        )
    yield Fact(name, last.text(), advice)


def _preprocessing(run: Recorded) -> Iterator[Fact]:
    """Whether the normalisation is that of the initial weights."""
    from vitkit.weights import load

    init = run.recipe["init"]
    if not init or leads_elsewhere(init) or not Path(init).exists():
        return
    theirs = load(init, quiet=True).preprocessing.to_json()
    ours = run.recipe["data"]["preprocessing"]
    changed = []
    for name in ("mean", "std"):
        if list(theirs[name]) != list(ours[name]):
            changed.append(f"{name} {_numbers(ours[name])} instead of {_numbers(theirs[name])}")
    value = f"as {init} has it"
    advice = ""
    if changed:
        value = " and ".join(changed)
        advice = (
            f"images are normalised otherwise than those of {init}, which costs accuracy: leave "
            "out `data.preprocessing.mean` and .std"
        )
    yield Fact("mean and deviation", value, advice)


def _numbers(values: Sequence[float]) -> str:
    """Numbers in few digits; a single number if all are equal."""
    if len(set(values)) == 1:
        values = values[:1]
    return " ".join(f"{value:g}" for value in values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation."""
    mean = _mean(values)
    return math.sqrt(_mean([(value - mean) ** 2 for value in values]))
