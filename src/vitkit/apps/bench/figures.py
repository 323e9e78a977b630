"""Figures of `vitkit bench`."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.exporting import RuntimeSpeed
from vitkit.system.storage.files import MARK, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vitkit.exporting import Implementation

ROW = 0.22  # height of a bar, inches
CURVE = 3.6  # height of the curves, inches
BESIDE = (
    (4, 4),
    (4, -10),
    (4, 14),
    (4, -20),
)  # offsets of labels from their dots in points, alternating


def draw(
    path: Path, implementations: "Sequence[Implementation]", speeds: Sequence[RuntimeSpeed]
) -> None:
    """Draw throughput as bars; and with approximations also accuracy against throughput as curves."""
    from matplotlib.figure import Figure

    batches = list(speeds[0].images_per_second)
    heights = [0.8 + ROW * len(implementations) * (len(batches) + 1)]
    if any(implementation.less for implementation in implementations):
        heights.append(CURVE)
    figure = Figure(figsize=(7.5, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    draw_bars(axes[0], [implementation.name for implementation in implementations], speeds)
    if len(heights) > 1:
        draw_curves(axes[1], implementations, speeds)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130, metadata={"Comment": MARK})
    write_whole(path, picture.getvalue())


def draw_bars(axes: "Axes", names: Sequence[str], speeds: Sequence[RuntimeSpeed]) -> None:
    """Draw images per second: one row per runtime, one colour per batch size."""
    batches = list(speeds[0].images_per_second)
    height = 1 / (len(batches) + 1)
    for place, batch in enumerate(batches):
        rows = [row + place * height for row in range(len(names))]
        rates = [speed.images_per_second[batch] for speed in speeds]
        bars = axes.barh(rows, rates, height, label=f"batch {batch}")
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    middle = height * (len(batches) - 1) / 2
    axes.set_yticks([row + middle for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.01)
    axes.set_xlabel("images per second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def draw_curves(
    axes: "Axes", implementations: "Sequence[Implementation]", speeds: Sequence[RuntimeSpeed]
) -> None:
    """Draw the share of good predictions against the throughput at the largest batch size: one
    curve for token merging, one for early exits, and a point for each candidate that computes the
    whole model.

    A prediction is good if it is correct; without labels, if it equals the model's in float32.
    """
    batch = max(speeds[0].images_per_second)
    compared = {}
    for i, implementation in enumerate(implementations):
        if implementation.agreement is not None:
            compared[i] = implementation.agreement
    has_truth = all(agreement.accuracy is not None for agreement in compared.values())

    # The points: (images per second, percentage of good predictions, label)
    curves: dict[str, list[tuple[float, float, str]]] = {}
    for i, agreement in compared.items():
        good = agreement.same
        if agreement.accuracy is not None and has_truth:
            good = agreement.accuracy
        kind = "the whole model"
        if implementations[i].less:
            kind = "tokens merged in a block"
            if implementations[i].less.startswith("exits"):
                kind = "early exits"
        text = implementations[i].less or implementations[i].name
        point = (speeds[i].images_per_second[batch], 100 * good, text)
        curves.setdefault(kind, []).append(point)

    # The curves: each begins at the whole model in float32
    start = curves["the whole model"][0]
    for kind, points in curves.items():
        points = sorted(points)
        line = ""
        if kind != "the whole model":
            points = [start, *points]
            line = "-"
        rates, values, _ = zip(*points, strict=True)
        axes.plot(rates, values, f"o{line}", label=kind)
    _name_points(axes, [point for points in curves.values() for point in points])

    # The axes and the legend
    axes.set_xlabel(f"images per second, batch {batch}")
    meaning = "the model's own answers, %"
    if has_truth:
        meaning = "accuracy, %"
    axes.set_ylabel(meaning)
    axes.margins(x=0.25, y=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(curves)
    )


def _name_points(axes: "Axes", points: Sequence[tuple[float, float, str]]) -> None:
    """Write the label of each point, (x, y, label); above and below the points in turns."""
    for number, (x, y, text) in enumerate(sorted(points)):
        offset = BESIDE[number % len(BESIDE)]
        axes.annotate(text, (x, y), offset, textcoords="offset points", fontsize=7)
