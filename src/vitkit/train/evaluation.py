"""Measuring a run while it trains: its recipe's evaluators, each when it is due."""

import torch

from vitkit.data import Source, eval_batches, subset
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

    An evaluator that has measured at this step, before the run was interrupted, is not asked again.
    If there is an average of the weights, it is what is measured.
    """
    recipe, log = run.recipe, run.log
    step = run.state.step
    total = recipe.length.n
    measured = []
    with log.meter.pausing():
        # Each evaluator that is due. Runs are compared by the first one's first metric
        for each in recipe.evals:
            if not due(step, each.every.n, total) or (step, each.title) in log.evaluated:
                continue
            metrics, first = _measure(run, each)
            primary = first if each is recipe.evals[0] else ""
            log.evaluation(step, each.title, metrics, primary)
            measured += metrics
        if measured:
            log.metrics(step, measured)

        # What the objective can show of its work
        if due(step, recipe.evaluate_every.n, total):
            draw(run)


def _measure(run: Run, each: Eval) -> tuple[list[Metric], str]:
    """What an evaluator says of every part that it measures on, and the name of its first metric on
    the last of them: the test part, if there is one."""
    metrics = []
    first = ""
    for name, source in _parts(run, each).items():
        batches = run.stop.watch(run.log.evaluating(name, _batches(run, source)))
        of_part = _measure_part(run, each, Part(source, batches))
        named = [each.named(metric, name) for metric in of_part]  # "test/top1"
        if named:
            first = named[0].name
        metrics += named
    return metrics, first


def _parts(run: Run, each: Eval) -> dict[str, Source]:
    """The images that an evaluator measures on, by the names that its metrics begin with."""
    if each.data:
        return {each.images: run.data.others[each.images]}
    return run.data.held_out


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
    """What an evaluator says of one part, of the model as it would be saved now."""
    recipe = run.recipe
    labels = output_names(recipe, run.data.facts)
    activation = recipe.objective.activation()
    with run.state.deployed() as learner, autocast(run.state.device, recipe.precision):
        classifier = Classifier(learner.model, recipe.data.preprocessing, labels, activation)
        return list(each.evaluator.measure(Subject(classifier, learner), part))


@torch.no_grad()
def draw(run: Run) -> None:
    """Write an objective's pictures of a few held-out images to pictures.safetensors, for the
    report."""
    recipe, device = run.recipe, run.state.device

    # A few images, evenly spread over the first part
    part = next(iter(run.data.held_out.values()), run.data.train)
    count = min(SHOWN, len(part))
    some = subset(part, [i * len(part) // count for i in range(count)])
    batch = next(iter(eval_batches(some, recipe.data.preprocessing, count, 0)))

    # Their pictures, by what they show. An image's index is its key, so that they stay comparable
    with run.state.deployed() as learner, autocast(device, recipe.precision):
        images = recipe.data.preprocessing.normalise(batch.images.to(device))  # (SHOWN, C, H, W)
        pictures = learner.eval().pictures(images, batch.indices.to(device))
    if pictures and on_rank_0():
        tensors = {name: x.cpu().contiguous() for name, x in pictures.items()}
        order = {"order": ",".join(pictures)}  # a safetensors file has none of its own
        write_safetensors(run.run_dir / "pictures.safetensors", tensors, order)
