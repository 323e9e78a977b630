"""From images with masks to a model that classifies every pixel: one pass over the images, a head in closed form,
chosen by cross-validated IoU, and its measurement on images that had no part in it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitkit.data import (
    Columns,
    Masked,
    Source,
    fingerprint,
    masked,
    resized_mask,
    splits_with_masks,
)
from vitkit.evaluation import Metric, SegmentationScores
from vitkit.evaluation.metrics.segmentation import measure_masks, readable
from vitkit.finetuning.segmentation.closed_form import (
    FINER,
    MOST_KEPT,
    MOST_PATCHES,
    Example,
    Sums,
    Tried,
    blocks_to_try,
    calibrated,
    columns_of,
    cross_validated,
    folds_of,
    sample,
    shares_of,
    solved,
)
from vitkit.finetuning.segmentation.page import write_mask_page
from vitkit.models import ViTConfig
from vitkit.runtimes import map_runtime
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData, BadImage
from vitkit.system.machine import PrecisionChoice, autocast, pick_precision
from vitkit.system.storage.files import write_json
from vitkit.training import locked
from vitkit.weights import Classifier, dense, save

RECORD = "masks.json"  # in the run directory
PAGE = "report.html"
CLOSED_FORM = "closed form"


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


@dataclass(frozen=True)
class SegmentationResult:
    """A model that classifies every pixel, and how good it is."""

    classifier: Classifier
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


def read_parts(request: MaskRequest) -> tuple[dict[str, Masked], dict | None]:
    """The parts of the images with their masks, "train" and others; and what identifies the part that had to
    be made. Raises BadData if there are no images to learn from."""
    splits = splits_with_masks(request.data, request.masks, request.columns, always_grouped=True)
    for note in splits.notes:
        if "labelled" not in note:  # images with masks need no labels
            say(note)
    parts, notes = masked(
        splits.sources, request.data, request.masks, request.legend, request.ignore
    )
    for note in notes:
        say(note)
    if "train" not in parts:
        raise BadData(f"{request.data} has no training images, but {', '.join(parts)}")
    return parts, {"held_out": splits.made_fingerprint} if splits.made_fingerprint else None


def make(
    request: MaskRequest,
    published: Classifier,
    run_dir: Path,
    device: torch.device,
    precision: PrecisionChoice = "auto",
) -> SegmentationResult:
    """Make the model, save it in `run_dir`/model, and measure it.

    published: the pre-trained model. Raises BadData for images or masks that a model cannot learn from.
    """
    began = time.monotonic()
    with locked(run_dir):
        # So that the same command may begin again if this process is killed
        write_json(run_dir / RECORD, plan(request))
        parts, made = read_parts(request)
        train = parts["train"]
        say(
            f"{counted(len(train), 'image')} with masks of {counted(len(train.labels), 'class')}: "
            f"{some(list(train.labels), 5)}"
        )

        # One pass over the images
        config = published.model.config
        assert isinstance(config, ViTConfig)  # `dense` refuses others
        most = blocks_to_try(config.width, config.depth)[-1]
        bare = dense(published, (), most, request.tokens)
        examples, sums, folds = read(bare, train, device, precision)

        # The head
        tried = cross_validated(sums, examples, folds, config.width, config.depth)
        best = max(tried, key=lambda each: each.miou)
        to_logits, best = calibrated(best, examples, sums.classes)
        scores = _left_out_metric(best)
        xx, xy = sums.without(None, columns_of(best.reading.blocks, config.width))
        weights = solved(xx, xy, best.reading.l2)
        made_model = dense(published, train.labels, best.reading.blocks, request.tokens)
        head: Any = made_model.model.head
        with torch.no_grad():
            head.weight.copy_((weights[:-1] @ to_logits.weight).mT)
            head.bias.copy_(weights[-1] @ to_logits.weight + to_logits.bias)
        origin: dict[str, Any] = {
            "recipe": "finetune-masks",
            "init": request.init,
            "head": CLOSED_FORM,
            "data": request.data,
            "masks": request.masks,
            "legend": train.legend.to_json(),
            "metrics": {scores.name: scores.text()},
            "split_seed": 0,
            **(made or {}),
            "learned": [fingerprint(train.images)],
        }
        classifier = replace(made_model, origin=origin)
        save(classifier, run_dir / "model")
        say(f"after {time.monotonic() - began:.1f} s a first model is in {run_dir / 'model'}")
        say(
            f"its head reads the patches of {counted(best.reading.blocks, 'block')}; "
            f"on training images that had no part in a fit it has {scores.text()} (mean IoU)"
        )
        if measured_on := _part_to_measure(parts):
            parts[measured_on] = readable(parts[measured_on], "left out")
        result = _measured(classifier, parts, scores, device, precision, began)
        if result.scores is not None:
            page = _page(request, result, parts[result.test_name], run_dir, device, precision)
            result = replace(result, page=page)
        write_json(run_dir / RECORD, record(request, result, tried, best))
    return result


def read(
    bare: Classifier, train: Masked, device: torch.device, precision: PrecisionChoice
) -> tuple[list[Example], Sums, np.ndarray]:
    """The features of the training images and what ridge regression needs of them, from one pass.

    Returns the examples that are kept for cross-validation, the sums of all images, and the fold of each example.
    Images that cannot be read are left out, and named. Raises BadData if none can, or if their masks have one class.
    """
    bare = bare.to(device).for_inference()
    chosen = pick_precision(precision, device).precision
    folds = folds_of(len(train), train.images.groups)
    sums: Sums | None = None
    examples: list[Example] = []
    kept: list[int] = []
    size = 0
    most_patches = max(MOST_PATCHES // len(train), 1)
    present = np.zeros(len(train.labels), bool)
    for i, (image, mask) in prepared(bare, train):
        height, width = image.shape[1:]
        patch = bare.preprocessing.patch
        grid = (height // patch[0], width // patch[1])
        with torch.inference_mode(), autocast(device, chosen):
            features = bare.features(torch.from_numpy(image[None]))[0].cpu()  # (N, M - 1)
        if not features.isfinite().all():
            raise BadData(f"the model gives NaN or infinity for {train.images.name(i)}")
        if sums is None:
            count = len(np.unique(folds))
            sums = Sums(features.shape[1], len(train.labels), count)
        shares, known = shares_of(resized_mask(mask, (height, width)), grid, len(train.labels))
        chosen_patches = sample(len(shares), most_patches, i)
        sums.add(
            int(folds[i]), features[chosen_patches], shares[chosen_patches], known[chosen_patches]
        )
        present |= (shares > 0).any(0).numpy()
        needed = features.numel() + FINER**2 * shares.numel()
        if size + needed <= MOST_KEPT:
            size += needed
            finer = resized_mask(mask, (FINER * grid[0], FINER * grid[1]))
            examples.append(Example(features.half(), grid, finer))
            kept.append(i)
    if sums is None:
        raise BadData("none of the training images can be read with its mask")
    about_255 = ""
    if train.legend.ignores_255_alone:
        about_255 = " (pixels of 255 are ignored unless `legend` gives 255 to a class)"
    if present.sum() < 2:
        raise BadData(
            f"the masks of the training images have {counted(int(present.sum()), 'class')} "
            f"({some([train.labels[k] for k in np.flatnonzero(present)], 3)}); a model needs two at "
            f"least{about_255}"
        )
    absent = [train.labels[k] for k in np.flatnonzero(~present)]
    if absent:
        say(f"no training mask has {some(absent, 5)}, so the model never answers that{about_255}")
    if len(np.unique(folds)) < 2:
        raise BadData(
            "one training image, or one group of images, is not enough: two are needed at least, so that one is "
            "predicted by a model of the other"
        )
    return examples, sums, folds[kept]


def prepared(
    classifier: Classifier, train: Masked
) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """Each image as the model reads it, uint8 (C, H, W), and its mask, uint8 (h, w), with its number. Images that
    cannot be read are left out, and named."""
    for i in bar("computing features")(range(len(train)), len(train)):
        try:
            picture, mask = train.pair(i)
            image = classifier.preprocessing.array(picture)
        except BadImage as error:
            say(f"left out: {error}")
            continue
        yield i, (image, mask)


def _left_out_metric(best: Tried) -> Metric:
    """The mean IoU of the cross-validated predictions, with an interval by resampling images."""
    truth, predicted, right = best.counts.swapaxes(0, 1)
    nothing = np.zeros_like(right)
    names = [str(k) for k in range(right.shape[1])]
    scores = SegmentationScores(tuple(names), truth, predicted, right, nothing, nothing)
    first = next(scores.metrics(each_class=False))
    return first.within("left_out")


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
    return SegmentationResult(classifier, left_out, scores, name, worst, seconds)


def _page(
    request: MaskRequest,
    result: SegmentationResult,
    masked: Masked,
    run_dir: Path,
    device: torch.device,
    precision: PrecisionChoice,
) -> Path:
    """Write the page about the images that the model was measured on."""
    assert result.scores is not None  # there are such images
    facts: dict[str, object] = {
        "model": f"{CLOSED_FORM}, from {request.init}",
        "images": f"{counted(len(masked), 'image')} of {request.data} ({result.test_name})",
        "preprocessing": str(result.classifier.preprocessing),
        "cross-validated": f"{result.left_out.text()} mean IoU of the training images",
        "seconds": f"{result.seconds:.1f}",
    }
    runtime = map_runtime(result.classifier, str(device), precision)
    return write_mask_page(
        run_dir / PAGE, run_dir.name, runtime, masked, result.scores, result.metrics, facts
    )


def plan(request: MaskRequest) -> dict[str, Any]:
    """What the run is made of, by which the same command knows it."""
    return {"init": request.init, "data": request.data, "masks": request.masks}


def record(
    request: MaskRequest, result: SegmentationResult, tried: list[Tried], best: Tried
) -> dict[str, Any]:
    """What is written about the run beside its model."""
    return {
        **plan(request),
        "reading": best.reading._asdict() | {"rare": best.rare},
        "tried": [each.reading._asdict() | {"miou": each.miou} for each in tried],
        "left_out": result.left_out.to_json(),
        "measured_on": result.test_name,
        "metrics": {metric.name: metric.to_json() for metric in result.metrics},
        "worst": list(result.worst),
        "seconds": round(result.seconds, 1),
    }
