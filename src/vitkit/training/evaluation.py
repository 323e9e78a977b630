"""Measuring a run while it trains: its recipe's evaluators, each when it is due."""

from collections.abc import Iterator
from functools import partial

import torch

from vitkit.data import Batch, EvalBatches, Source, eval_batches, subset
from vitkit.evaluation import Answers, Eval, Kept, Metric, Part, Subject, learns, write_answers
from vitkit.objectives import Learner
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import from_rank_0, on_rank_0, world
from vitkit.system.span import due
from vitkit.training.recipe import output_names
from vitkit.training.record.log import lines_of, primary_lines
from vitkit.training.run import Run
from vitkit.weights import Classifier, write_safetensors

ANSWERS = "answers.safetensors"  # in the run's directory
LATEST = "answers.latest.safetensors"  # there, in a run that keeps its best weights
SHOWN = 8  # images that an objective's pictures are made of


def evaluate(run: Run, is_last: bool = False) -> None:
    """Measure by every evaluator that is due at this step, and write its metrics down. After the
    last step all are due.

    An evaluator that has measured at this step, before the run was interrupted, does not do it
    again.
    If there is an average of the weights, it is what is measured.
    """
    recipe, log = run.recipe, run.log
    step = run.state.step
    total = step if is_last else run.schedule.last
    due_now = [
        each
        for each in recipe.evals
        if due(step, each.every.n, total) and (step, each.title) not in log.evaluated
    ]
    shows = due(step, recipe.evaluate_every.n, total)
    if not due_now and not shows:
        return

    measured = []
    with log.meter.pausing():
        # Each evaluator that is due. Runs are compared by the first one's first metric
        for each in due_now:
            metrics, primary = _measure(run, each, step == total)
            if each is not recipe.evals[0]:
                primary = ""
            log.evaluation(step, each.title, metrics, primary)
            measured += metrics
        if measured:
            log.metrics(step, measured)

        # What the objective can show of its work
        if shows:
            write_pictures(run)

    # On with the training: an evaluator may leave the model in evaluation mode
    run.state.learner.train()


def gains_no_more(run: Run) -> bool:
    """Whether the first evaluator's last measurements, as many as the recipe's `early_stop`, are in
    no metric better than the best one before them; in the recipe's `best` metric alone, if it has
    one. Every rank gets the same answer."""
    recipe = run.recipe
    if not recipe.early_stop or not recipe.evals:
        return False
    if not due(run.state.step, recipe.evals[0].every.n, run.schedule.last):
        return False  # nothing was measured at this step that was not known before
    return from_rank_0(lambda: _gains_no_more(run))


def _gains_no_more(run: Run) -> bool:
    measured = primary_lines(run.run_dir)
    if run.recipe.best:
        measured = lines_of(run.run_dir, run.recipe.best)
    earlier = measured[: -run.recipe.early_stop]
    if not earlier:
        return False
    best = {}
    for metrics in earlier:
        for name, metric in metrics.items():
            if name not in best or _beats(metric, best[name]):
                best[name] = metric
    latest = measured[-run.recipe.early_stop :]
    return not any(_beats(metrics[name], best[name]) for metrics in latest for name in best)


def _beats(metric: Metric, other: Metric) -> bool:
    """Whether a metric is better than an earlier value; never, for one of which no value is."""
    return metric.unit.better != "neither" and metric.beats(other)


def _measure(run: Run, each: Eval, is_last: bool) -> tuple[list[Metric], str]:
    """The metrics of an evaluator on every part that it measures on, and the name of its primary
    one: the first on the last of those parts, which is the test part, if there is one.

    The answers that the run's result was computed from are kept.
    """
    metrics = []
    primary = ""
    parts = _parts(run, each)
    for name, source in parts.items():
        read = partial(_watched_batches, run, name)
        part = Part(source, read(source), _train_part(run, each), read)
        keeps = is_last or bool(run.recipe.best)
        if keeps and each is run.recipe.evals[0] and name == list(parts)[-1]:
            part = part._replace(keep=partial(_keep_answers, run, name))
        part_metrics = _measure_part(run, each, part)
        named = [each.named(metric, name) for metric in part_metrics]  # "test/top1"
        if named:
            primary = named[0].name
        metrics += named
    return metrics, primary


def _keep_answers(run: Run, name: str, given: Answers) -> None:
    """Write the answers to a part into the run's directory, for the report: for good, or until it is
    known whether this evaluation is the best."""
    file = ANSWERS
    if run.recipe.best:
        file = LATEST
    if on_rank_0():
        write_answers(run.run_dir / file, Kept(given, name, run.state.step))


def _parts(run: Run, each: Eval) -> dict[str, Source]:
    """The images that an evaluator measures on, by the names that its metrics begin with."""
    if each.data:
        return {each.images: run.data.others[each.images]}
    return run.data.held_out


def _train_part(run: Run, each: Eval) -> Source | None:
    """The training images that belong to those, for an evaluator that learns; None for others."""
    if not learns(each.evaluator):
        return None
    if each.data:
        return run.data.others[each.train_images]
    return run.data.train


def _watched_batches(run: Run, name: str, source: Source) -> Iterator[Batch]:
    """This rank's share of the images, under the run's progress bar, until someone stops it."""
    return run.stop.watch(run.log.evaluating(name, _batches(run, source)))


def _batches(run: Run, source: Source) -> EvalBatches:
    """This rank's share of the images. A batch is as large as a micro-batch of the training, so it
    fits into memory too."""
    recipe = run.recipe
    rank, world_size = world()
    rows = min(recipe.micro_batch, recipe.batch // world_size) * world_size
    pin = run.state.device.type == "cuda"
    share = (rank, world_size)
    return eval_batches(source, recipe.data.preprocessing, rows, run.workers, share, pin=pin)


def _measure_part(run: Run, each: Eval, part: Part) -> list[Metric]:
    """The metrics of an evaluator on one part, of the model as it would be saved now."""
    recipe = run.recipe
    labels = output_names(recipe, run.data.facts)
    activation = recipe.objective.activation()
    with run.state.deployed() as learner, autocast(run.state.device, recipe.precision):
        classifier = Classifier(learner.model, recipe.data.preprocessing, labels, activation)
        return list(each.evaluator.measure(Subject(classifier, learner), part))


@torch.no_grad()
def write_pictures(run: Run) -> None:
    """Write an objective's pictures of a few held-out images to pictures.safetensors, for the
    report."""
    # Most learners have none: nothing is decoded for those
    if run.state.learner.pictures.__func__ is Learner.pictures:
        return
    recipe, device = run.recipe, run.state.device

    # A few images, evenly spread over the first part
    part = next(iter(run.data.held_out.values()), run.data.train)
    count = min(SHOWN, len(part))
    some = subset(part, [i * len(part) // count for i in range(count)])
    batch = next(iter(eval_batches(some, recipe.data.preprocessing, count, 0)))

    # Their pictures, by title. An image's index is its key, so that they stay comparable
    with run.state.deployed() as learner, autocast(device, recipe.precision):
        images = recipe.data.preprocessing.normalise(batch.images.to(device))  # (SHOWN, C, H, W)
        pictures = learner.eval().pictures(images, batch.indices.to(device))
    if pictures and on_rank_0():
        tensors = {name: x.cpu().contiguous() for name, x in pictures.items()}
        order = {"order": ",".join(pictures)}  # a safetensors file has none of its own
        write_safetensors(run.run_dir / "pictures.safetensors", tensors, order)
