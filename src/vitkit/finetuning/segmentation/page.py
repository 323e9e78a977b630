"""The page of a model that classifies every pixel: its metrics, its classes with their colours, and images beside
their masks and what the model makes of them, the worst first."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitkit.data import Masked
from vitkit.evaluation import Metric, SegmentationScores
from vitkit.finetuning.segmentation.names import METRICS
from vitkit.inspection import (
    Markup,
    block,
    embedded,
    pairs,
    paragraph,
    section,
    table,
    write_page,
)
from vitkit.prediction import overlay, palette
from vitkit.runtimes import Runtime, class_map
from vitkit.system.console.text import printable_name

WORST = 6  # images with the lowest IoU
OTHERS = 6  # images chosen evenly from all
LONGEST = 320  # pixels along the longer side of each of the three pictures, about
GAP = 6  # pixels between them


def write_mask_page(
    path: Path,
    title: str,
    runtime: Runtime,
    masked: Masked,
    scores: SegmentationScores,
    metrics: Sequence[Metric],
    facts: dict[str, object],
) -> Path:
    """Write the page, and return its path.

    Args:
        path: The file.
        title: Its heading.
        runtime: What computes the masks.
        masked: The images with masks.
        scores: The counts of these images.
        metrics: What follows from them.
        facts: How the model was made, by name.
    """
    first = metrics[0]
    blocks = [
        paragraph(f"{first.unit.text(first.value)} mean IoU", "headline"),
        paragraph(f"{first.interval_text()} at 95 % confidence", "faint"),
        section("Metrics", _metrics(metrics)),
        section("Classes", _classes(metrics, masked.labels)),
    ]
    worst = scores.worst(WORST)
    others = np.setdiff1d(np.arange(0, len(masked), max(len(masked) // OTHERS, 1)), worst)[:OTHERS]
    explanation = paragraph("The image, its mask, and what the model makes of it.")
    for heading, chosen in (("Images with the lowest IoU", worst), ("Other images", others)):
        figures = [_figure(runtime, masked, scores, int(i)) for i in chosen]
        if figures:
            blocks.append(section(heading, explanation, *figures))
    blocks.append(section("How it was made", pairs(facts)))
    return write_page(path, title, blocks)


def _metrics(metrics: Sequence[Metric]) -> Markup:
    rows = []
    for metric in metrics:
        if metric.name in METRICS:
            value = metric.unit.text(metric.value)
            rows.append((METRICS[metric.name], value, metric.interval_text()))
    return table(rows, ("metric", "value", "95 % interval"))


def _classes(metrics: Sequence[Metric], labels: tuple[str, ...]) -> Markup:
    """A table of the classes with the colours of the pictures, and their IoU."""
    of_class = {metric.name.removeprefix("iou/"): metric for metric in metrics}
    rows = []
    for label, colour in zip(labels, palette(labels).tolist(), strict=False):
        chip = Markup(
            f'<span style="background: rgb({colour[0]} {colour[1]} {colour[2]})">&emsp;&emsp;</span>'
        )
        metric = of_class.get(label)
        value = ""
        interval = ""
        if metric is not None:
            value = metric.unit.text(metric.value)
            interval = metric.interval_text()
        rows.append((printable_name(label), chip, value, interval))
    return table(rows, ("class", "", "IoU", "95 % interval"))


def _figure(runtime: Runtime, masked: Masked, scores: SegmentationScores, i: int) -> Markup:
    """An image, its mask and the prediction, side by side, with the image's IoU."""
    picture, truth = masked.pair(i)
    predicted = class_map(runtime, picture)
    step = max(1, max(truth.shape) // LONGEST)
    pixels = np.ascontiguousarray(picture.pixels()[::step, ::step])
    gap = np.full((len(pixels), GAP, 3), 255, np.uint8)
    shown = [pixels]
    for mask in (truth, predicted):
        shown += [gap, overlay(pixels, mask[::step, ::step], masked.labels)]
    address = embedded(np.concatenate(shown, axis=1), 3 * LONGEST)
    caption = f"{printable_name(masked.images.name(i))}: mean IoU {scores.image_iou()[i]:.1%}"
    image = Markup(f'<img alt="{block(caption)}" style="max-width: 100%" src="{address}">')
    return Markup(f"<figure>{image}<figcaption>{block(caption)}</figcaption></figure>")
