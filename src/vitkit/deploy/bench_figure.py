"""A picture of what `vitkit bench` measured."""

import io
from collections.abc import Sequence
from pathlib import Path

from vitkit.deploy.bench import Speed
from vitkit.system.files import MARK, write_whole


def draw(path: Path, names: Sequence[str], speeds: Sequence[Speed]) -> None:
    """Draw images per second as bars, a row for each runtime and a colour for each size of batch."""
    from matplotlib.figure import Figure

    batches = list(speeds[0].images_per_second)
    figure = Figure(figsize=(7, 0.8 + 0.22 * len(names) * (len(batches) + 1)), layout="constrained")
    axes = figure.subplots()
    height = 1 / (len(batches) + 1)
    for place, batch in enumerate(batches):
        rows = [row + place * height for row in range(len(names))]
        rates = [speed.images_per_second[batch] for speed in speeds]
        bars = axes.barh(rows, rates, height, label=f"batch {batch}")
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    middle = height * (len(batches) - 1) / 2
    axes.set_yticks([row + middle for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("images per second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130, metadata={"Comment": MARK})
    write_whole(path, picture.getvalue())
