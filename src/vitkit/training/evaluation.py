"""Evaluation during a run, by the evaluators of its recipe, each when it is due."""

from collections.abc import Iterator
from functools import partial

import torch

from vitkit.data import Batch, Source, eval_batches, subset
from vitkit.evaluation import (
    COUNT,
    Answers,
    Eval,
    Kept,
    Metric,
    Part,
    Subject,
    learns,
    write_answers,
)
from vitkit.objectives import Learner
from vitkit.recipes import Recipe
from vitkit.recipes.settings import output_names
from vitkit.system.errors import BadSettings
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import from_rank_0, on_rank_0, world
from vitkit.system.span import Span, due
from vitkit.training.data import RunData
from vitkit.training.record.metrics import gains_nothing, not_measured, read_metrics
from vitkit.training.run import Run
from vitkit.weights import Classifier, write_safetensors

ANSWERS = "answers.safetensors"  # in the run's directory
LATEST = "answers.latest.safetensors"  # answers of the last evaluation, in a run that keeps its best weights
SHOWN = 8  # number of images for an objective's pictures
UNKNOWN = ("...",)  # printed for the metrics of an evaluator without `figures`


def evaluate(run: Run, is_last: bool = False) -> None:
    """Run every evaluator that is due at this step, and log its metrics. After the last step all are due.

    An evaluator that ran at this step before the run was interrupted does not run again. If the run keeps
    an average of the weights, the average is evaluated.
    """
    recipe = run.recipe
    log = run.log
    step = run.state.step
    total = run.schedule.last
    if is_last:
        total = step
    due_now = [
        each
        for each in recipe.evals
        if due(step, interval(recipe, each).in_steps, total)
        and (step, each.title) not in log.evaluated
    ]
    shows = due(step, recipe.evaluate_every.in_steps, total)
    if not due_now and not shows:
        return

    measured = []
    with log.meter.pausing():
        # The evaluators that are due. Only the first one has the primary metric, by which runs are compared
        for each in due_now:
            metrics, primary = _measure(run, each, step == total)
            if each is not recipe.evals[0]:
                primary = ""
            log.evaluation(step, each.title, metrics, primary)
            measured += metrics
        if measured:
            log.metrics(step, measured)

        # The objective's pictures
        if shows:
            write_pictures(run)

    # Back to training mode
    run.state.learner.train()


def interval(recipe: Recipe, each: Eval) -> Span:
    """The time between two evaluations by an evaluator of a recipe."""
    return each.every or recipe.evaluate_every


def _measure(run: Run, each: Eval, is_last: bool) -> tuple[list[Metric], str]:
    """The metrics of an evaluator on each of its parts, and the name of the primary one: the first
    metric on the last part, which is the test part if there is one.

    The answers behind the run's result are written to a file.
    """
    recipe = run.recipe
    data = run.data

    # The images, and those to learn from: the evaluator's own data set, or the run's
    parts = data.held_out
    train: Source | None = data.train
    if each.data:
        parts = {each.images: data.others[each.images]}
        train = data.others.get(each.train_images)
    if not learns(each.evaluator):
        train = None

    metrics: list[Metric] = []
    primary = ""
    labels = output_names(recipe, data.facts)
    for name, source in parts.items():
        read = partial(_watched_batches, run, name)
        part = Part(source, read(source), train, read)
        keeps = is_last or bool(recipe.best)
        if keeps and each is recipe.evals[0] and name == list(parts)[-1]:
            part = part._replace(keep=partial(_keep_answers, run, name))

        # Evaluate the model as it would be saved now
        with run.state.deployed() as learner, autocast(run.state.device, recipe.arithmetic):
            activation = recipe.objective.activation()
            classifier = Classifier(learner.model, recipe.data.preprocessing, labels, activation)
            measured = list(each.evaluator.measure(Subject(classifier, learner), part))
        named = [each.named(metric, name) for metric in measured]  # "test/top1"
        if named:
            primary = named[0].name
        metrics += named
    return metrics, primary


def _keep_answers(run: Run, name: str, given: Answers) -> None:
    """Write the answers to a part into the run's directory, for the report. A run that keeps its best
    weights writes them to LATEST, until it is known whether this evaluation is the best."""
    file = ANSWERS
    if run.recipe.best:
        file = LATEST
    if on_rank_0():
        write_answers(run.run_dir / file, Kept(given, name, run.state.step))


def _watched_batches(run: Run, name: str, source: Source) -> Iterator[Batch]:
    """This rank's share of the images in batches, with the run's progress bar; ends early if the run is
    asked to stop. A batch has the size of a micro-batch of the training, so it fits into memory."""
    recipe = run.recipe
    rank, world_size = world()
    rows = min(recipe.micro_batch, recipe.batch // world_size) * world_size
    pin = run.state.device.type == "cuda"
    share = (rank, world_size)
    batches = eval_batches(source, recipe.data.preprocessing, rows, run.workers, share, pin=pin)
    return run.stop.watch(run.log.evaluating(name, batches))


def gains_no_more(run: Run) -> bool:
    """Whether the last `early_stop` evaluations have improved no metric of the first evaluator, or not the
    recipe's `best` metric if it has one. Every rank gets the same answer."""
    recipe = run.recipe
    if not recipe.early_stop or not recipe.evals:
        return False
    every = interval(recipe, recipe.evals[0])
    if not due(run.state.step, every.in_steps, run.schedule.last):
        return False  # no evaluation at this step
    metrics = run.run_dir / "metrics.jsonl"
    return from_rank_0(lambda: gains_nothing(read_metrics(metrics), recipe.early_stop, recipe.best))


def check_best(recipe: Recipe, data: RunData) -> None:
    """Raises VitkitError if no evaluator of a resolved recipe will measure its `best` metric, as far as
    that can be checked before the first step: from the parts, and the metrics in `figures`."""

    def named(each: Eval, figure: str, part: str) -> str:
        return each.named(Metric(figure, 0, COUNT), part).name

    if not recipe.best:
        return
    known = []
    for each in recipe.evals:
        figures = getattr(each.evaluator, "figures", UNKNOWN)
        for part in [each.images] if each.data else data.held_out:
            if figures == UNKNOWN and recipe.best.startswith(named(each, "", part)):
                return
            known += [named(each, figure, part) for figure in figures]
    if recipe.best not in known:
        raise BadSettings(not_measured(recipe.best, known))


@torch.no_grad()
def write_pictures(run: Run) -> None:
    """Write an objective's pictures of a few held-out images to pictures.safetensors, for the
    report."""
    # Return before decoding anything if the learner has no pictures
    if type(run.state.learner).pictures is Learner.pictures:
        return
    recipe = run.recipe
    device = run.state.device

    # A few images, evenly spread over the first part
    part = next(iter(run.data.held_out.values()), run.data.train)
    count = min(SHOWN, len(part))
    some = subset(part, [i * len(part) // count for i in range(count)])
    batch = next(iter(eval_batches(some, recipe.data.preprocessing, count, 0)))

    # The pictures, by title. Each image's index is its random key, so that evaluations are comparable
    with run.state.deployed() as learner, autocast(device, recipe.arithmetic):
        images = recipe.data.preprocessing.normalise(batch.images.to(device))  # (SHOWN, C, H, W)
        pictures = learner.eval().pictures(images, batch.indices.to(device))
    if pictures and on_rank_0():
        tensors = {name: x.cpu().contiguous() for name, x in pictures.items()}
        order = {"order": ",".join(pictures)}  # a safetensors file does not keep the order
        write_safetensors(run.run_dir / "pictures.safetensors", tensors, order)
