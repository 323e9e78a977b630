"""Measuring a run while it trains: its recipe's evaluators, each when it is due."""

import time
from pathlib import Path

import torch

from vitkit.data import Source, default_workers, eval_batches, subset
from vitkit.evaluate import Eval, Metric, Part, Subject
from vitkit.system.machine import autocast
from vitkit.system.ranks import on_rank_0, world
from vitkit.system.span import due
from vitkit.train.data import RunData
from vitkit.train.log import Log
from vitkit.train.recipe import Facts, Recipe, output_names
from vitkit.train.state import State
from vitkit.train.stop import Stop
from vitkit.weights import Classifier
from vitkit.weights.files import write_safetensors

SHOWN = 8  # images that an objective's pictures are made of


def evaluate(
    recipe: Recipe, run_dir: Path, state: State, data: RunData, log: Log, stop: Stop
) -> None:
    """Measure by every evaluator that is due at this step, and write down what it says.

    One that has measured at this step before the run was interrupted is not asked again. Where there is an average of the
    weights, it is what is measured.
    """
    began = time.perf_counter()
    total = recipe.length.n
    measured = []
    for number, each in enumerate(recipe.evals):
        if not due(state.step, each.every.n, total) or (state.step, each.title) in log.evaluated:
            continue
        by_part = {}
        for name, source in _parts(each, data).items():
            batches = stop.watch(log.evaluating(name, _batches(recipe, state, data, source)))
            metrics = _measure(each, recipe, state, Part(source, batches), data.facts)
            by_part[name] = [metric.within(name) for metric in metrics]
        metrics = [metric for of_part in by_part.values() for metric in of_part]
        primary = ""
        if number == 0 and metrics:
            primary = list(by_part.values())[-1][0].name
        log.evaluation(state.step, each.title, metrics, primary)
        measured += metrics
    if measured:
        log.metrics(state.step, measured)

    # Pictures, on a schedule of their own
    if due(state.step, recipe.evaluate_every.n, total):
        draw(recipe, state, next(iter(data.held_out.values()), data.train), run_dir)
    log.bar.update(log.task, text="")
    log.meter.paused += time.perf_counter() - began


def _parts(each: Eval, data: RunData) -> dict[str, Source]:
    """What an evaluator measures on, by the names that its metrics begin with."""
    if each.data:
        return {each.images: data.others[each.images]}
    return data.held_out


def _batches(recipe: Recipe, state: State, data: RunData, source: Source):
    """This rank's share of the images, in batches as large as those of the training."""
    workers = recipe.data.workers
    if workers < 0:
        workers = default_workers(data.train)
    ranks = world().ranks
    rows = min(recipe.micro_batch, recipe.batch // ranks) * ranks
    pin = state.device.type == "cuda"
    return eval_batches(source, recipe.data.preprocessing, rows, workers, world(), pin=pin)


def _measure(each: Eval, recipe: Recipe, state: State, part: Part, facts: Facts) -> list[Metric]:
    """What an evaluator says of the model on a part."""
    known = output_names(recipe, facts)
    activation = recipe.objective.activation()
    with state.deployed() as learner, autocast(state.device, recipe.precision):
        classifier = Classifier(learner.model, recipe.data.preprocessing, known, activation)
        return list(each.evaluator.measure(Subject(classifier, learner), part))


@torch.no_grad()
def draw(recipe: Recipe, state: State, part: Source, run_dir: Path) -> None:
    """Keep an objective's pictures of a few images, from all over `part`, in pictures.safetensors, for the report."""
    count = min(SHOWN, len(part))
    some = subset(part, [i * len(part) // count for i in range(count)])
    batch = next(iter(eval_batches(some, recipe.data.preprocessing, count, 0)))
    device = state.device
    with state.deployed() as learner, autocast(device, recipe.precision):
        images = recipe.data.preprocessing.normalise(batch.images.to(device))
        pictures = learner.eval().pictures(images, batch.indices.to(device))
    if pictures and on_rank_0():
        tensors = {name: x.cpu().contiguous() for name, x in pictures.items()}
        order = {"order": ",".join(pictures)}
        write_safetensors(run_dir / "pictures.safetensors", tensors, order)
