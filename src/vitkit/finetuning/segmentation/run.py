"""From images with masks to a model that classifies every pixel: a head in closed form (beginning.py), then all
weights fine-tuned while time is left (fine_tuning.py); the better one on held-out images is kept (choice.py), and
measured on images that had no part in it."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from vitkit.data import Masked, Preprocessing, Source
from vitkit.evaluation import Metric, SegmentationScores
from vitkit.evaluation.metrics.segmentation import measure_masks, readable
from vitkit.finetuning.candidates import average
from vitkit.finetuning.segmentation.beginning import Job, Stage, begin
from vitkit.finetuning.segmentation.choice import (
    AVERAGE,
    CLOSED_FORM,
    FINE_TUNED,
    Candidate,
    best,
)
from vitkit.finetuning.segmentation.directory import MODEL, PAGE, RECORD
from vitkit.finetuning.segmentation.fine_tuning import RUN, START, fine_tuned
from vitkit.finetuning.segmentation.grid import GridChoice
from vitkit.finetuning.segmentation.page import write_mask_page
from vitkit.finetuning.segmentation.request import (
    MaskRequest,
    held_out_of,
    part_to_measure,
    read_parts,
)
from vitkit.runtimes import map_runtime
from vitkit.system.console.messages import known
from vitkit.system.console.text import counted
from vitkit.system.machine import PrecisionChoice, pick_precision
from vitkit.system.processes.ranks import from_rank_0, long_from_rank_0
from vitkit.system.storage.files import write_json
from vitkit.training import locked
from vitkit.weights import Classifier, load, save


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
        job = Job(request, run_dir, device, arithmetic, began)
        stage = long_from_rank_0(lambda: begin(job, published))
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
        return long_from_rank_0(lambda: _finish(job, stage))


def _finish(job: Job, stage: Stage) -> SegmentationResult:
    """Choose the model, save it, measure it, and write the page and the record."""
    parts = read_parts(job.request).parts
    classifier = load(job.run_dir / MODEL, quiet=True)
    candidates: list[Candidate] = []
    chosen = CLOSED_FORM
    if stage.recipe is not None:
        assert stage.scores is not None  # as nothing is fine-tuned without them
        held_out, _ = held_out_of(parts)
        assert held_out is not None
        held_out = readable(held_out, "left out")
        start = load(job.run_dir / START, quiet=True)
        tuned = load(job.run_dir / RUN, quiet=True)
        candidates = [Candidate(CLOSED_FORM, start, stage.scores)]
        for name, each in ((FINE_TUNED, tuned), (AVERAGE, average(start, tuned))):
            runtime = map_runtime(each, str(job.device), job.precision)
            text = f"evaluating: {name}"
            scores = measure_masks(runtime, held_out, text, boundaries=False)
            candidates.append(Candidate(name, each, scores))
        picked = best(candidates)
        chosen = picked.name
        if chosen != CLOSED_FORM:
            metric = picked.held_out
            origin = stage.origin | {"head": chosen, "metrics": {metric.name: metric.text()}}
            classifier = replace(picked.classifier, origin=origin, license=classifier.license)
            save(classifier, job.run_dir / MODEL)

    if measured_on := part_to_measure(parts):
        parts[measured_on] = readable(parts[measured_on], "left out")
    result = _measured(job, classifier, parts, stage.left_out)
    result = replace(
        result,
        chosen=chosen,
        held_out=tuple((each.name, each.held_out) for each in candidates),
        minutes=job.request.minutes,
        grid=stage.grid,
    )
    if result.scores is not None:
        page = _page(job, classifier, result, parts[result.test_name])
        result = replace(result, page=page)
    write_json(job.run_dir / RECORD, record(result, stage))
    return result


def _measured(
    job: Job, classifier: Classifier, parts: dict[str, Masked], left_out: Metric
) -> SegmentationResult:
    """The result, with the scores on the test images, or else on the validation images."""
    scores = None
    name = part_to_measure(parts)
    worst: tuple[str, ...] = ()
    if name:
        runtime = map_runtime(classifier, str(job.device), job.precision)
        scores = measure_masks(runtime, parts[name], f"evaluating on {name}")
        images: Source = parts[name].images
        worst = tuple(images.name(i) for i in scores.worst(3).tolist())
    preprocessing = classifier.preprocessing
    return SegmentationResult(preprocessing, left_out, scores, name, worst, job.spent())


def _page(job: Job, classifier: Classifier, result: SegmentationResult, masked: Masked) -> Path:
    """Write the page about the images that the model was measured on."""
    assert result.scores is not None  # there are such images
    facts: dict[str, object] = {
        "model": f"{result.chosen}, from {job.request.init}",
        "images": f"{counted(len(masked), 'image')} of {job.request.data} ({result.test_name})",
        "preprocessing": str(result.preprocessing),
        "cross-validated": f"{result.left_out.text()} mean IoU of the training images",
        "seconds": f"{result.seconds:.1f}",
    }
    for name, metric in result.held_out:
        facts[f"held out, {name}"] = f"{metric.text()} mean IoU"
    runtime = map_runtime(classifier, str(job.device), job.precision)
    path = job.run_dir / PAGE
    return write_mask_page(
        path, job.run_dir.name, runtime, masked, result.scores, result.metrics, facts
    )


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
        **stage.record,
        **tuning,
        **grid,
        "left_out": result.left_out.to_json(),
        "chosen": result.chosen,
        "held_out": {name: metric.to_json() for name, metric in result.held_out},
        "measured_on": result.test_name,
        "metrics": {metric.name: metric.to_json() for metric in result.metrics},
        "worst": list(result.worst),
        "seconds": round(result.seconds, 1),
    }
