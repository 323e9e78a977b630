"""Before all weights are fine-tuned: a head in closed form on the usual grid of patches, and on a larger one if the
time allows it; and the plan of the fine-tuning."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitkit.data import Masked, fingerprint
from vitkit.evaluation import Metric, SegmentationScores
from vitkit.evaluation.metrics.segmentation import measure_masks, readable
from vitkit.finetuning.segmentation.choice import CLOSED_FORM, LEARNED_MASKS, has_learned_masks
from vitkit.finetuning.segmentation.directory import (
    MODEL,
    RECORD,
    Decided,
    check_own,
    continued,
)
from vitkit.finetuning.segmentation.fine_tuning import (
    MEASURED,
    NAME,
    START,
    Tuning,
    data_of,
    recipe_of,
    tuning_for,
)
from vitkit.finetuning.segmentation.first_model import FirstModel, first_model
from vitkit.finetuning.segmentation.grid import Clock, GridChoice, compared, larger_grid
from vitkit.finetuning.segmentation.page import OTHERS, WORST
from vitkit.finetuning.segmentation.request import (
    FEWEST_HELD_OUT,
    SEED,
    MaskRequest,
    Parts,
    held_out_of,
    part_to_measure,
    plan,
    read_parts,
)
from vitkit.recipes import Recipe
from vitkit.runtimes import map_runtime
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, some
from vitkit.system.machine import Precision
from vitkit.system.storage.files import write_json
from vitkit.weights import Classifier, save

SHOWN = WORST + OTHERS  # images on the page
WITH_BOUNDARIES = 1.3  # time that an image takes to measure with its boundaries, of that without


class Job(NamedTuple):
    """What is made, where, and since when."""

    request: MaskRequest
    run_dir: Path
    device: torch.device
    precision: Precision
    began: float
    """By the clock of `time.monotonic`."""

    def spent(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def note(self, planned: dict[str, Any], decided: Decided) -> None:
        """Write what the run is made of, and what is decided so far, so that the same command goes on if this
        process is killed."""
        write_json(self.run_dir / RECORD, planned | decided.to_json())


class Stage(NamedTuple):
    """What is known after the closed form."""

    plan: dict[str, Any]
    """What the run is made of."""
    notes: tuple[str, ...]
    """What was said of its images."""
    left_out: Metric
    """The mean IoU of its cross-validated predictions for the training images."""
    record: dict[str, Any]
    """What is written about it."""
    grid: GridChoice | None
    """What a larger grid of patches adds; None if none was tried."""
    origin: dict[str, Any]
    """The provenance of the model."""
    tuning: Tuning
    """The length of the fine-tuning."""
    recipe: Recipe | None
    """Its recipe; None if nothing is fine-tuned."""
    labels: tuple[str, ...]
    """The classes."""
    train: int
    """Number of images that it learns from."""
    scores: SegmentationScores | None
    """The counts of the closed form on the held-out images; None if none can be held out, or none are needed."""


def begin(job: Job, published: Classifier) -> Stage:
    """Make the closed form, save it, and plan the fine-tuning. published: the pre-trained model."""
    # The images, and what an earlier process has decided
    check_own(job.run_dir)
    read = read_parts(job.request)
    for note in read.notes:
        say(note)
    planned = plan(job.request, read.parts)
    decided = continued(job.run_dir, planned)
    job.note(planned, decided)
    train = read.parts["train"]
    say(
        f"{counted(len(train), 'image')} with masks of {counted(len(train.labels), 'class')}: "
        f"{some(list(train.labels), 5)}"
    )
    held_out, numbers = held_out_of(read.parts)
    if not job.request.minutes:  # nothing is chosen
        held_out, numbers = None, numbers[:0]

    # The closed form
    def closed_form(patches: int | None) -> FirstModel:
        return first_model(published, train, numbers, patches, job.device, job.precision)

    started = time.monotonic()
    first = closed_form(job.request.tokens)
    seconds = time.monotonic() - started
    origin = origin_of(job.request, read, published)
    save_first(first, origin, job.run_dir)
    say(f"after {job.spent():.1f} s a first model is in {job.run_dir / MODEL}")
    say(
        f"its head reads the patches of {counted(first.best.reading.blocks, 'block')}; "
        f"on training images that had no part in a fit it has {first.left_out.text()} (mean IoU)"
    )
    if held_out is not None:
        held_out = readable(held_out, "left out")

    # A larger grid of patches
    choice: GridChoice | None = None
    if job.request.minutes and job.request.tokens is None:
        if decided.patches is None:
            clock = clock_of(job, read.parts, held_out)
            patches = larger_grid(
                published, first, train, job.device, job.precision, seconds, clock
            )
            decided = decided._replace(patches=patches)
            job.note(planned, decided)
        if decided.patches:
            try:
                larger = closed_form(decided.patches)
            except torch.OutOfMemoryError:
                say(
                    f"{decided.patches:,} patches of an image need too much memory, so the first model is kept"
                )
                decided = decided._replace(patches=0)
                job.note(planned, decided)
            else:
                choice = compared(first, larger, train.images.groups)
                say(str(choice))
                if choice.is_better:
                    first = larger
                    save_first(first, origin, job.run_dir)

    # The plan of the fine-tuning
    record: dict[str, Any] = {
        "reading": first.best.reading._asdict() | {"rare": first.best.rare},
        "tried": [each.reading._asdict() | {"miou": each.miou} for each in first.tried],
    }
    if decided.patches is not None:
        record["grid"] = {"patches": decided.patches}
    stage = Stage(
        plan=planned,
        notes=read.notes,
        left_out=first.left_out,
        record=record,
        grid=choice,
        origin=origin,
        tuning=Tuning(0),
        recipe=None,
        labels=train.labels,
        train=len(train) - len(numbers),
        scores=None,
    )
    if not job.request.minutes:
        return stage
    if held_out is None or len(held_out) < FEWEST_HELD_OUT:
        say(
            f"nothing is fine-tuned: fewer than {FEWEST_HELD_OUT} images can be held out to choose a model; more "
            "images would help"
        )
        return stage
    return with_tuning(stage, job, first, read.parts, held_out, decided)


def origin_of(request: MaskRequest, read: Parts, published: Classifier) -> dict[str, Any]:
    """The provenance of the closed form."""
    train = read.parts["train"]
    origin: dict[str, Any] = {
        "recipe": NAME,
        "init": request.init,
        "head": CLOSED_FORM,
        "data": request.data,
        "masks": request.masks,
        "legend": train.legend.to_json(),
        "split_seed": SEED,
        **read.made,
        "learned": [fingerprint(train.images)],
    }
    if has_learned_masks(published):
        origin[LEARNED_MASKS] = True
    return origin


def save_first(first: FirstModel, origin: dict[str, Any], run_dir: Path) -> None:
    """Save the model in closed form of all training images, with its provenance and its cross-validated mean IoU."""
    metric = first.left_out
    metrics = {"metrics": {metric.name: metric.text()}}
    save(replace(first.classifier, origin=origin | metrics), run_dir / MODEL)


def clock_of(job: Job, parts: dict[str, Masked], held_out: Masked | None) -> Clock:
    """The time of the command, and the images that are measured until its end."""
    measured_on = part_to_measure(parts)
    images = len(parts[measured_on]) if measured_on else 0
    if held_out is not None:
        images += 3 * len(held_out)  # for three candidates
    return Clock(job.request.minutes, job.spent(), images)


def with_tuning(
    stage: Stage,
    job: Job,
    first: FirstModel,
    parts: dict[str, Masked],
    held_out: Masked,
    decided: Decided,
) -> Stage:
    """The stage with the closed form's scores on the held-out images, and with the recipe of a fine-tuning if there
    is time for one. decided: what an earlier process has decided of it."""
    # The closed form on the held-out images, which also tells how long measuring takes
    start = first.without_held_out
    save(start, job.run_dir / START)
    measuring = time.monotonic()
    runtime = map_runtime(start, str(job.device), job.precision)
    scores = measure_masks(runtime, held_out, "evaluating the closed form", boundaries=False)
    an_image = (time.monotonic() - measuring) / len(held_out)
    images = MEASURED + 2 * len(held_out)  # at the end of the run, and both other candidates
    if measured_on := part_to_measure(parts):
        images += round(WITH_BOUNDARIES * len(parts[measured_on])) + SHOWN

    # The recipe, and its length
    request = job.request
    data = data_of(
        request.data,
        request.masks,
        request.legend,
        request.ignore,
        request.columns,
        request.exclude,
    )
    recipe = recipe_of(
        start,
        job.run_dir / START,
        data,
        first.best.rare,
        job.precision,
        job.device.type == "cuda",
    )
    tuning = decided.tuning
    if tuning is None:
        afterwards = an_image * images
        tuning = tuning_for(start, recipe, job.device, request.minutes, job.spent(), afterwards)
    if not tuning.steps:
        return stage._replace(scores=scores)
    job.note(stage.plan, decided._replace(tuning=tuning))
    return stage._replace(tuning=tuning, recipe=recipe, scores=scores)
