"""`vitkit finetune` of good images alone: the run directory, and what the command prints."""

from collections.abc import Iterator
from pathlib import Path

import torch
from rich.table import Table

from vitkit.data import fingerprint
from vitkit.evaluation import Metric
from vitkit.finetuning.good_images import (
    GoodImages,
    GoodModel,
    at_own_resolution,
    good_model,
    open_good_images,
)
from vitkit.finetuning.plan import OtherPlan, same_place
from vitkit.recipes import Recipe, Say
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings
from vitkit.system.functions.steps import DATA, IMAGES, step
from vitkit.system.machine import pick_precision
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import parse_json, write_json
from vitkit.training import locked
from vitkit.training.state.checkpoints import MODEL
from vitkit.weights import save

RECORD = "good_images.json"  # in the run directory: what its model was made of
FIGURES = {
    "auroc": "area under the ROC curve",
    "aupro": "area under the curve of overlaps with defective regions",
    "false_alarms": "good images that are called unlike",
    "missed": "other images that are called good",
}


def remember(
    recipe: Recipe,
    run_dir: Path,
    normal: str,
    device: torch.device,
    say: Say,
    keep_size: bool = False,
    masks: str = "",
) -> GoodModel:
    """Make the model of the good images of a recipe's data, and save it in `run_dir`/model. Raises
    OtherPlan for the directory of another run.

    keep_size: read images at the recipe's size, however large they are.
    masks: where images of the test part are defective.
    """
    with locked(run_dir):
        _check_same(run_dir, recipe, normal)
        images = open_good_images(recipe.data, normal)
        if masks and images.test is None:
            raise BadSettings(
                f"`masks` say where images of a test part are defective, and {recipe.data.source} has none: measure "
                f"other images afterwards, {step('evaluate', run_dir, DATA, masks=masks)}"
            )
        for sentence in _about(images):
            say(sentence)
        if not keep_size:
            recipe = at_own_resolution(recipe, images.good)
        height, width = recipe.data.preprocessing.size
        say(f"images are read at {width} x {height} pixels")
        precision = from_rank_0(lambda: pick_precision(recipe.precision, device)).precision
        made = good_model(recipe, images, device, precision, say, masks)
        from_rank_0(lambda: save(made.classifier.to("cpu"), run_dir / MODEL))
        record = {
            "source": recipe.data.source,
            "init": recipe.init,
            "normal": normal,
            "images": fingerprint(images.good),
            "used": made.used,
            "threshold": made.threshold.value,
            "expected_false_alarms": made.threshold.rejected,
            "interval": list(made.threshold.interval),
            "metrics": {metric.name: metric.to_json() for metric in made.figures},
            "test": {metric.name: metric.to_json() for metric in made.test},
        }
        from_rank_0(lambda: write_json(run_dir / RECORD, record))
    return made


def _check_same(run_dir: Path, recipe: Recipe, normal: str) -> None:
    """Raises OtherPlan unless the directory is new, or has a model of good images of the same place."""
    if not (run_dir / MODEL).exists():
        return
    try:
        record = parse_json((run_dir / RECORD).read_bytes())
        is_same = same_place(record["source"], recipe.data.source) and record["normal"] == normal
        if is_same and record["init"] == recipe.init:
            return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise OtherPlan(f"{run_dir} holds another model")


def _about(images: GoodImages) -> Iterator[str]:
    """Sentences that describe the data."""
    normal, other = images.labels
    parts = [f"{counted(len(images.good), 'image')} of {normal} to learn from"]
    if images.others is not None:
        parts.append(f"{len(images.others):,} of other classes to measure on ({other})")
    if images.test is not None:
        parts.append(f"{len(images.test):,} to test on ({images.test_name})")
    yield ", ".join(parts)
    yield from images.notes


def shown(made: GoodModel, run_dir: Path) -> Iterator[str | Table]:
    """What the command prints: the threshold and what it promises, what was measured, and what one would
    do next."""
    normal, other = made.images.labels
    threshold = made.threshold
    low, high = threshold.interval
    by = counted(threshold.images, "image")
    if threshold.images < made.used:
        by = counted(threshold.images, "group") + " of images"
    yield (
        f"an image is called {other} from an anomaly score of {threshold.value:.3f} on, which "
        f"{100 * threshold.rejected:.1f} % of other images of {normal} are expected to exceed "
        f"({100 * low:.1f} to {100 * high:.1f} %), by {by} that were left out"
    )
    columns: list[tuple[str, tuple[Metric, ...]]] = []
    if made.figures:
        count = made.used + len(made.images.others or ())
        columns.append((f"{count:,} images, those of {normal} left out", made.figures))
    if made.test:
        count = len(made.images.test or ())
        columns.append((f"{count:,} of {made.images.test_name}", made.test))
    if columns:
        table = Table("", *(title for title, _ in columns))
        for name, words in FIGURES.items():
            cells = []
            for _, metrics in columns:
                found = [metric.text() for metric in metrics if metric.name == name]
                cells.append(found[0] if found else "")
            if any(cells):
                table.add_row(words, *cells)
        yield table
    yield from _chance(made)
    yield f"wrote {run_dir / MODEL}"
    yield "next:"
    yield f"  {step('predict', run_dir, IMAGES, attention='maps')}   which images are {other}, and where"
    yield f"  {step('sort', run_dir, IMAGES, into='sorted')}   images into folders"


def _chance(made: GoodModel) -> Iterator[str]:
    """A sentence if the model does not tell other images from good ones better than chance."""
    metric = main_metric(made)
    if metric is None:
        return
    lowest = metric.value
    if metric.interval is not None:
        lowest = metric.interval[0]
    if lowest > 0.5:
        return
    normal, other = made.images.labels
    height, width = made.classifier.preprocessing.size
    yield (
        f"this model does not tell {other} from {normal} clearly better than chance, which has an area of 50 %. "
        f"Are the differences visible at {width} x {height} pixels, and do all images of {normal} show one kind "
        f"of object in one view? Then try larger images (`image={2 * max(height, width)}`), more images of "
        f"{normal}, other weights, or, with enough images of {other}, a classifier: the same command without "
        "`normal`"
    )


def main_metric(made: GoodModel) -> Metric | None:
    """The area under the ROC curve on the images to test on, or else on those of other classes; None
    without either."""
    for metric in (*made.test, *made.figures):
        if metric.name == "auroc":
            return metric
    return None
