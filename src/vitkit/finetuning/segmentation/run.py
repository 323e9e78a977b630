"""From images with masks to a model that classifies every pixel: a head in closed form (first_model.py), then all
weights fine-tuned while time is left (fine_tuning.py); the better one on held-out images is kept (choice.py), and
measured on images that had no part in it."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitkit.data import (
    Columns,
    Masked,
    Preprocessing,
    Source,
    fingerprint,
    masked,
    masks_digest,
    split_off,
    splits_with_masks,
    with_masks,
    without,
)
from vitkit.evaluation import Metric, SegmentationScores
from vitkit.evaluation.metrics.segmentation import measure_masks, readable
from vitkit.finetuning.candidates import average
from vitkit.finetuning.segmentation.choice import (
    AVERAGE,
    CLOSED_FORM,
    FINE_TUNED,
    LEARNED_MASKS,
    Candidate,
    best,
    has_learned_masks,
)
from vitkit.finetuning.segmentation.directory import (
    MODEL,
    PAGE,
    RECORD,
    check_own,
    continued,
)
from vitkit.finetuning.segmentation.fine_tuning import (
    HOLD_OUT,
    MEASURED,
    NAME,
    RUN,
    START,
    Tuning,
    data_of,
    fine_tuned,
    recipe_of,
    tuning_for,
)
from vitkit.finetuning.segmentation.first_model import FirstModel, first_model
from vitkit.finetuning.segmentation.grid import Clock, GridChoice, compared, larger_grid
from vitkit.finetuning.segmentation.page import OTHERS, WORST, write_mask_page
from vitkit.recipes import Recipe
from vitkit.runtimes import map_runtime
from vitkit.system.console.messages import known, say
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData
from vitkit.system.machine import Precision, PrecisionChoice, pick_precision
from vitkit.system.processes.ranks import from_rank_0, long_from_rank_0
from vitkit.system.storage.files import write_json
from vitkit.training import locked
from vitkit.weights import Classifier, load, save

SEED = 0  # of the images that are held out
FEWEST_HELD_OUT = 5  # of fewer images, the standard error of a difference says nothing
SHOWN = WORST + OTHERS  # images on the page
WITH_BOUNDARIES = 1.3  # time that an image takes to measure with its boundaries, of that without


@dataclass(frozen=True)
class MaskRequest:
    """What a model that classifies pixels is made of."""

    init: str
    """The name of the pre-trained model."""
    data: str
    """The images."""
    masks: str
    """A folder of masks, or the column that holds them."""
    legend: Path | None
    ignore: int | None
    columns: Columns
    tokens: int | None
    """Most patches of an image; None is the default of `dense`."""
    minutes: float = 0.0
    """The time of all of it, of which fine-tuning gets the rest; 0: nothing is fine-tuned."""
    exclude: str = ""
    """A file that lists training images to leave out; "" for none."""


@dataclass(frozen=True)
class SegmentationResult:
    """How good a model that classifies every pixel is."""

    preprocessing: Preprocessing
    """How it reads images."""
    left_out: Metric
    """The mean IoU of cross-validated predictions for the training images."""
    scores: SegmentationScores | None
    """The counts of the test images; None if there are none."""
    test_name: str
    """Which images these are: "test" or "val"."""
    worst: tuple[str, ...]
    """The names of the test images with the lowest IoU, the worst first."""
    seconds: float
    page: Path | None = None
    """The page about the test images; None if there are none."""
    chosen: str = CLOSED_FORM
    """Which of the candidates the model is."""
    held_out: tuple[tuple[str, Metric], ...] = ()
    """The candidates with their mean IoU on the held-out images that chose one; empty if nothing was fine-tuned."""
    minutes: float = 0.0
    """The time that was asked for."""
    grid: GridChoice | None = None
    """What a larger grid of patches adds; None if none was tried."""

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """What was measured on the test images; empty without any."""
        if self.scores is None:
            return ()
        return tuple(self.scores.metrics())

    @property
    def metric(self) -> Metric:
        """The mean IoU on the test images, or else that of cross-validated predictions."""
        return next(iter(self.metrics), self.left_out)

    def rows(self) -> list[dict]:
        """A row for each metric."""
        return [{"metric": each.name, "value": each.value} for each in self.metrics]


class Parts(NamedTuple):
    """The images with their masks."""

    parts: dict[str, Masked]
    """"train" and others."""
    made: dict[str, str]
    """What identifies the part that had to be made, as the provenance of a model has it; empty without one."""
    notes: tuple[str, ...]
    """What a user should know of them."""


def read_parts(request: MaskRequest) -> Parts:
    """Open the images with their masks. Raises BadData if there are no images to learn from."""
    splits = splits_with_masks(request.data, request.masks, request.columns, always_grouped=True)
    said = [note for note in splits.notes if "labelled" not in note]  # masks are no labels
    sources = splits.sources
    if "train" not in sources:
        raise BadData(f"{request.data} has no training images, but {', '.join(sources)}")
    if request.exclude:  # before masks are looked for: a list may name images without one
        train = sources["train"]
        sources["train"] = without(train, request.exclude)
        count = len(train) - len(sources["train"])
        said.append(f"{count:,} training images that {request.exclude} lists are left out")
    parts, notes = masked(sources, request.data, request.masks, request.legend, request.ignore)
    made = {}
    if splits.made_fingerprint:
        made = {"held_out": splits.made_fingerprint}
    return Parts(parts, made, (*said, *notes))


def make(
    request: MaskRequest,
    published: Classifier,
    run_dir: Path,
    device: torch.device,
    precision: PrecisionChoice = "auto",
) -> SegmentationResult:
    """Make the model, save it in `run_dir`/model, and measure it. All ranks call this together: the first one
    computes the closed form and the figures, and all of them fine-tune.

    published: the pre-trained model. Raises BadData for images or masks that a model cannot learn from.
    """
    began = time.monotonic()
    with locked(run_dir):
        arithmetic = from_rank_0(lambda: pick_precision(precision, device)).precision
        stage = long_from_rank_0(
            lambda: _begin(request, published, run_dir, device, arithmetic, began)
        )
        if stage.recipe is not None:
            ends_at = began + 60 * request.minutes - stage.tuning.afterwards
            with known(stage.notes):
                fine_tuned(
                    stage.recipe,
                    run_dir,
                    stage.tuning,
                    stage.labels,
                    stage.train,
                    request.minutes,
                    ends_at,
                    device,
                )
        return long_from_rank_0(lambda: _finish(request, run_dir, stage, device, arithmetic, began))


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


def held_out_of(parts: dict[str, Masked]) -> tuple[Masked | None, np.ndarray]:
    """The images that choose between the closed form and a fine-tuned model, and their numbers among the training
    images: the validation part if there is a test part too, else a share of the training images, or None without
    enough. They are those that the run of the fine-tuning holds out (`divide`)."""
    train = parts["train"]
    nothing = np.zeros(0, np.int64)
    if "val" in parts and "test" in parts:
        return parts["val"], nothing
    learned, numbers = split_off(with_masks(train), HOLD_OUT, SEED)
    groups = learned
    if train.images.groups is not None:
        groups = train.images.groups[learned]
    # Cross-validation of the others needs two groups of images
    if len(np.unique(groups)) < 2 or len(numbers) < FEWEST_HELD_OUT:
        return None, nothing
    return train.subset(numbers), numbers


def _begin(
    request: MaskRequest,
    published: Classifier,
    run_dir: Path,
    device: torch.device,
    precision: Precision,
    began: float,
) -> Stage:
    """Make the closed form, save it, and plan the fine-tuning."""
    check_own(run_dir)
    parts, made, notes = read_parts(request)
    for note in notes:
        say(note)
    planned = plan(request, parts)
    earlier = continued(run_dir, planned)
    # So that the same command may begin again if this process is killed
    write_json(run_dir / RECORD, planned | earlier.to_json())

    train = parts["train"]
    say(
        f"{counted(len(train), 'image')} with masks of {counted(len(train.labels), 'class')}: "
        f"{some(list(train.labels), 5)}"
    )
    held_out, numbers = held_out_of(parts)
    if not request.minutes:  # nothing is chosen
        held_out, numbers = None, numbers[:0]
    started = time.monotonic()
    first = first_model(published, train, numbers, request.tokens, device, precision)
    seconds = time.monotonic() - started
    origin: dict[str, Any] = {
        "recipe": NAME,
        "init": request.init,
        "head": CLOSED_FORM,
        "data": request.data,
        "masks": request.masks,
        "legend": train.legend.to_json(),
        "split_seed": SEED,
        **made,
        "learned": [fingerprint(train.images)],
    }
    if has_learned_masks(published):
        origin[LEARNED_MASKS] = True
    save_first(first, origin, run_dir)
    say(f"after {time.monotonic() - began:.1f} s a first model is in {run_dir / MODEL}")
    say(
        f"its head reads the patches of {counted(first.best.reading.blocks, 'block')}; "
        f"on training images that had no part in a fit it has {first.left_out.text()} (mean IoU)"
    )
    measured_on = _part_to_measure(parts)
    if held_out is not None:
        held_out = readable(held_out, "left out")

    # A larger grid, if the time allows it
    choice: GridChoice | None = None
    patches = earlier.patches
    if not request.minutes or request.tokens is not None:
        patches = 0
    if patches is None:
        images = len(parts[measured_on]) if measured_on else 0
        if held_out is not None:
            images += 3 * len(held_out)  # for three candidates
        clock = Clock(request.minutes, time.monotonic() - began, images)
        patches = larger_grid(published, first, train, device, precision, seconds, clock)
    if patches:
        earlier = earlier._replace(patches=patches)
        write_json(run_dir / RECORD, planned | earlier.to_json())
        larger = None
        try:
            larger = first_model(published, train, numbers, patches, device, precision)
        except torch.OutOfMemoryError:
            say(f"{patches:,} patches of an image need too much memory, so the first model is kept")
            earlier = earlier._replace(patches=0)
            write_json(run_dir / RECORD, planned | earlier.to_json())
        if larger is not None:
            choice = compared(first, larger, train.images.groups)
            say(str(choice))
            if choice.is_better:
                first = larger
                save_first(first, origin, run_dir)

    tried = [each.reading._asdict() | {"miou": each.miou} for each in first.tried]
    record = {
        "reading": first.best.reading._asdict() | {"rare": first.best.rare},
        "tried": tried,
    }
    stage = Stage(
        plan=planned,
        notes=notes,
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
    if not request.minutes:
        return stage
    if held_out is None or len(held_out) < FEWEST_HELD_OUT:
        say(
            f"nothing is fine-tuned: fewer than {FEWEST_HELD_OUT} images can be held out to choose a model; more "
            "images would help"
        )
        return stage

    # The closed form on the held-out images, which also tells how long measuring takes
    save(first.without_held_out, run_dir / START)
    measuring = time.monotonic()
    runtime = map_runtime(first.without_held_out, str(device), precision)
    scores = measure_masks(runtime, held_out, "evaluating the closed form", boundaries=False)
    an_image = (time.monotonic() - measuring) / len(held_out)
    images = MEASURED + 2 * len(held_out)  # at the end of the run, and both other candidates
    if measured_on:
        images += round(WITH_BOUNDARIES * len(parts[measured_on])) + SHOWN
    recipe = recipe_of(
        first.without_held_out,
        run_dir / START,
        data_of(
            request.data,
            request.masks,
            request.legend,
            request.ignore,
            request.columns,
            request.exclude,
        ),
        first.best.rare,
        precision,
        device.type == "cuda",
    )
    tuning = earlier.tuning
    if tuning is None:
        spent = time.monotonic() - began
        start = first.without_held_out
        tuning = tuning_for(start, recipe, device, request.minutes, spent, an_image * images)
    if not tuning.steps:
        return stage._replace(scores=scores)
    write_json(run_dir / RECORD, planned | earlier._replace(tuning=tuning).to_json())
    return stage._replace(tuning=tuning, recipe=recipe, scores=scores)


def save_first(first: FirstModel, origin: dict[str, Any], run_dir: Path) -> None:
    """Save the model in closed form of all training images, with its provenance and its cross-validated mean IoU."""
    metric = first.left_out
    metrics = {"metrics": {metric.name: metric.text()}}
    save(replace(first.classifier, origin=origin | metrics), run_dir / MODEL)


def _finish(
    request: MaskRequest,
    run_dir: Path,
    stage: Stage,
    device: torch.device,
    precision: Precision,
    began: float,
) -> SegmentationResult:
    """Choose the model, save it, measure it, and write the page and the record."""
    parts = read_parts(request).parts
    classifier = load(run_dir / MODEL, quiet=True)
    candidates: list[Candidate] = []
    chosen = CLOSED_FORM
    if stage.recipe is not None:
        assert stage.scores is not None  # as nothing is fine-tuned without them
        held_out, _ = held_out_of(parts)
        assert held_out is not None
        held_out = readable(held_out, "left out")
        start = load(run_dir / START, quiet=True)
        tuned = load(run_dir / RUN, quiet=True)
        candidates = [Candidate(CLOSED_FORM, start, stage.scores)]
        for name, each in ((FINE_TUNED, tuned), (AVERAGE, average(start, tuned))):
            runtime = map_runtime(each, str(device), precision)
            text = f"evaluating: {name}"
            scores = measure_masks(runtime, held_out, text, boundaries=False)
            candidates.append(Candidate(name, each, scores))
        picked = best(candidates)
        chosen = picked.name
        if chosen != CLOSED_FORM:
            metric = picked.held_out
            origin = stage.origin | {"head": chosen, "metrics": {metric.name: metric.text()}}
            classifier = replace(picked.classifier, origin=origin, license=classifier.license)
            save(classifier, run_dir / MODEL)

    if measured_on := _part_to_measure(parts):
        parts[measured_on] = readable(parts[measured_on], "left out")
    result = _measured(classifier, parts, stage.left_out, device, precision, began)
    result = replace(
        result,
        chosen=chosen,
        held_out=tuple((each.name, each.held_out) for each in candidates),
        minutes=request.minutes,
        grid=stage.grid,
    )
    if result.scores is not None:
        page = _page(
            request, classifier, result, parts[result.test_name], run_dir, device, precision
        )
        result = replace(result, page=page)
    write_json(run_dir / RECORD, record(result, stage))
    return result


def _part_to_measure(parts: dict[str, Masked]) -> str:
    """The part that the model is measured on: "test", or else "val", or "" if neither has an image."""
    return next((name for name in ("test", "val") if name in parts and len(parts[name])), "")


def _measured(
    classifier: Classifier,
    parts: dict[str, Masked],
    left_out: Metric,
    device: torch.device,
    precision: PrecisionChoice,
    began: float,
) -> SegmentationResult:
    """The result, with the scores on the test images, or else on the validation images."""
    scores = None
    name = _part_to_measure(parts)
    worst: tuple[str, ...] = ()
    if name:
        runtime = map_runtime(classifier, str(device), precision)
        scores = measure_masks(runtime, parts[name], f"evaluating on {name}")
        images: Source = parts[name].images
        worst = tuple(images.name(i) for i in scores.worst(3).tolist())
    seconds = time.monotonic() - began
    return SegmentationResult(classifier.preprocessing, left_out, scores, name, worst, seconds)


def _page(
    request: MaskRequest,
    classifier: Classifier,
    result: SegmentationResult,
    masked: Masked,
    run_dir: Path,
    device: torch.device,
    precision: PrecisionChoice,
) -> Path:
    """Write the page about the images that the model was measured on."""
    assert result.scores is not None  # there are such images
    facts: dict[str, object] = {
        "model": f"{result.chosen}, from {request.init}",
        "images": f"{counted(len(masked), 'image')} of {request.data} ({result.test_name})",
        "preprocessing": str(result.preprocessing),
        "cross-validated": f"{result.left_out.text()} mean IoU of the training images",
        "seconds": f"{result.seconds:.1f}",
    }
    for name, metric in result.held_out:
        facts[f"held out, {name}"] = f"{metric.text()} mean IoU"
    runtime = map_runtime(classifier, str(device), precision)
    return write_mask_page(
        run_dir / PAGE, run_dir.name, runtime, masked, result.scores, result.metrics, facts
    )


def plan(request: MaskRequest, parts: dict[str, Masked]) -> dict[str, Any]:
    """What the run is made of, by which the same command knows it: its settings, its images and its masks."""
    sources = {name: with_masks(part) for name, part in parts.items()}
    return {
        "init": request.init,
        "data": request.data,
        "masks": request.masks,
        "legend": str(request.legend or ""),
        "ignore": request.ignore,
        "tokens": request.tokens,
        "minutes": request.minutes,
        "exclude": request.exclude,
        "images": {name: fingerprint(source) for name, source in sources.items()},
        "digests": {name: masks_digest(source) for name, source in sources.items()},
    }


def record(result: SegmentationResult, stage: Stage) -> dict[str, Any]:
    """What is written about the run beside its model."""
    tuning = {}
    if stage.tuning.steps:
        tuning = {"tuning": stage.tuning._asdict()}
    grid = {}
    if stage.grid is not None:
        grid = {"grid": stage.grid.to_json()}
    return {
        **stage.plan,
        **tuning,
        **grid,
        **stage.record,
        "left_out": result.left_out.to_json(),
        "chosen": result.chosen,
        "held_out": {name: metric.to_json() for name, metric in result.held_out},
        "measured_on": result.test_name,
        "metrics": {metric.name: metric.to_json() for metric in result.metrics},
        "worst": list(result.worst),
        "seconds": round(result.seconds, 1),
    }
