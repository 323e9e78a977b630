"""Figure 12 (Appendix D.5): images per second, and the largest batch, against the image size."""

import os
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.models import named
from vitkit.studies.cell import Cell
from vitkit.studies.drawing import MARKERS, legend, panels
from vitkit.studies.fastest import GIB, MOST, Fastest
from vitkit.studies.outcomes import Ask, Results, Table
from vitkit.studies.study import Study

MODELS = ("Ti/16", "S/16", "B/16")
SIDES = (64, 128, 224, 384, 512)  # the paper's
LARGEST = "largest batch"


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A measurement of every model at every size."""
    grid = []
    for name in ask.models or MODELS:
        for side in ask.sizes or SIDES:
            folder = f"{name.replace('/', '-')}/{side}"
            measurement = Fastest(name, side, ask.memory)
            grid.append(Cell(folder, measurement, {"model": name, "side": side}))
    return grid


def check(ask: Ask) -> None:
    """Raises ValueError for a name that is no model's, for sizes that its patches do not divide,
    and for memory that is not there: the system would end other processes to find it."""
    for name in ask.models or MODELS:
        config = named(name)
        for side in ask.sizes or SIDES:
            config.resized((side, side))
    if not ask.memory > 0:
        raise ValueError(f"memory is {ask.memory}; it is a number of GiB above 0")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if ask.memory > machine:
        raise ValueError(f"memory is {ask.memory:g} GiB, and this machine has {machine:.0f}")


def _largest(results: Results) -> dict[tuple, float]:
    """The largest batch by model and size."""
    found = {}
    for row in results.rows:
        if row.metric is not None and row.metric.name == LARGEST:
            found[row.settings["model"], row.settings["side"]] = row.metric.value
    return found


def table(results: Results) -> Table:
    """Both numbers by model and size."""
    rates = results.group("model", "side")
    batches = _largest(results)
    models = list(dict.fromkeys(model for model, _ in rates))
    sides = sorted({side for _, side in rates})
    rows = []
    for model in models:
        texts = []
        for side in sides:
            text = "–"
            if (model, side) in rates:
                batch = f"{batches[model, side]:,.0f}"
                if batches[model, side] >= MOST:
                    batch += " or more"
                text = f"{rates[model, side][0].value:,.1f} ({batch})"
            texts.append(text)
        rows.append((model, *texts))
    notes = [
        "images per second at the best batch, and in brackets the largest batch that fits",
        "the paper has no table of Figure 12: it was measured on a core of a TPUv3",
    ]
    columns = ("model", *(f"{side} pixels" for side in sides))
    return Table("Figure 12: speed of inference", columns, rows, notes)


def draw(results: Results) -> Figure:
    """Both panels of Figure 12, with logarithmic axes."""
    rates = results.group("model", "side")
    batches = _largest(results)
    figure, (left, right) = panels(("peak inference speed", "largest batch that fits"))
    for number, model in enumerate(dict.fromkeys(model for model, _ in rates)):
        points = sorted((side, m[0].value) for (name, side), m in rates.items() if name == model)
        sizes = sorted((side, value) for (name, side), value in batches.items() if name == model)
        for axes, values in ((left, points), (right, sizes)):
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(*zip(*values, strict=True), label=model, marker=marker, markersize=5)
    sides = sorted({side for _, side in rates})
    for axes, title in ((left, "images per second"), (right, "images")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sides, [str(side) for side in sides])
        axes.set_xlabel("side of the images in pixels")
        axes.set_ylabel(title)
    legend(left)
    return figure


STUDY = Study(
    name="speed",
    summary="images per second and the largest batch against the image size (Figure 12)",
    measures=(
        "Inference of each model at each image size: the most images per second over all sizes of batch, and "
        "the largest batch that fits into memory, found by doubling and halving. On a CPU a batch may take "
        "--memory GiB, on a GPU what the GPU has. Random images, in the arithmetic that suits the device."
    ),
    found=(
        "Figure 12, on a core of a TPUv3: the growth of the cost with the fourth power of the side begins to "
        "show for the largest models at the largest sizes alone; Vision Transformers are about as fast as "
        "ResNets, and fit larger batches."
    ),
    limits=(
        "It needs a machine that does nothing else: other work on it halves the numbers, and not evenly. A "
        "CPU is at its best with small batches, where a TPU or a GPU is not. Nothing is trained; training "
        "costs about three times as much."
    ),
    cells=cells,
    table=table,
    draw=draw,
    needs=(),
    takes=("models", "sizes", "memory"),
    check=check,
)
