"""Measuring a run while it trains: its recipe's evaluators, each when it is due."""

import time

import torch

from vitkit.data import Source, default_workers, eval_batches, subset
from vitkit.data.loader import EvalBatches
from vitkit.evaluate import Eval, Metric, Part, Subject
from vitkit.system.machine import autocast
from vitkit.system.ranks import on_rank_0, world
from vitkit.system.span import due
from vitkit.train.recipe import output_names
from vitkit.train.run import Run
from vitkit.weights import Classifier
from vitkit.weights.files import write_safetensors

SHOWN = 8  # images that an objective's pictures are made of


def evaluate(run: Run) -> None:
    """Measure by every evaluator that is due at this step, and write down what it says.

    One that has measured at this step before the run was interrupted is not asked again. If there
    is an average of the weights, it is what is measured.
    """
    began = time.perf_counter()
    recipe, log = run.recipe, run.log
    step = run.state.step
    total = recipe.length.n
    measured = []
    for each in recipe.evals:
        if due(step, each.every.n, total) and (step, each.title) not in log.evaluated:
            metrics, primary = _measure(run, each)
            if each is not recipe.evals[0]:
                primary = ""
            log.evaluation(step, each.title, metrics, primary)
            measured += metrics
    if measured:
        log.metrics(step, measured)
    if due(step, recipe.evaluate_every.n, total):
        draw(run)
    log.bar.update(log.task, text="")
    log.meter.paused += time.perf_counter() - began


def _measure(run: Run, each: Eval) -> tuple[list[Metric], str]:
    """What an evaluator says, on each of its parts; and the name of the first metric on the last of
    them."""
    metrics = []
    primary = ""
    for name, source in _parts(run, each).items():
        batches = run.stop.watch(run.log.evaluating(name, _batches(run, source)))
        on_part = _measure_part(run, each, Part(source, batches))
        named = [metric.within(name) for metric in on_part]
        if named:
            primary = named[0].name
        metrics += named
    return metrics, primary


def _parts(run: Run, each: Eval) -> dict[str, Source]:
    """What an evaluator measures on, by the names that its metrics begin with."""
    if each.data:
        return {each.images: run.data.others[each.images]}
    return run.data.held_out


def _batches(run: Run, source: Source) -> EvalBatches:
    """This rank's share of the images, in batches as large as those of the training."""
    recipe = run.recipe
    workers = recipe.data.workers
    if workers < 0:
        workers = default_workers(run.data.train)
    world_size = world().world_size
    rows = min(recipe.micro_batch, recipe.batch // world_size) * world_size
    pin = run.state.device.type == "cuda"
    return eval_batches(source, recipe.data.preprocessing, rows, workers, world(), pin=pin)


def _measure_part(run: Run, each: Eval, part: Part) -> list[Metric]:
    """What an evaluator says of the model on a part."""
    recipe = run.recipe
    labels = output_names(recipe, run.data.facts)
    activation = recipe.objective.activation()
    with run.state.deployed() as learner, autocast(run.state.device, recipe.precision):
        classifier = Classifier(learner.model, recipe.data.preprocessing, labels, activation)
        return list(each.evaluator.measure(Subject(classifier, learner), part))


@torch.no_grad()
def draw(run: Run) -> None:
    """Keep an objective's pictures of a few held-out images, from all over them, in
    pictures.safetensors, for the report."""
    recipe, device = run.recipe, run.state.device
    part = next(iter(run.data.held_out.values()), run.data.train)
    count = min(SHOWN, len(part))
    some = subset(part, [i * len(part) // count for i in range(count)])
    batch = next(iter(eval_batches(some, recipe.data.preprocessing, count, 0)))
    with run.state.deployed() as learner, autocast(device, recipe.precision):
        images = recipe.data.preprocessing.normalise(batch.images.to(device))
        pictures = learner.eval().pictures(images, batch.indices.to(device))
    if pictures and on_rank_0():
        tensors = {name: x.cpu().contiguous() for name, x in pictures.items()}
        order = {"order": ",".join(pictures)}
        write_safetensors(run.run_dir / "pictures.safetensors", tensors, order)
