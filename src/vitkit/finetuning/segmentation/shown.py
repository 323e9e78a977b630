"""What `vitkit finetune` prints of a model that classifies every pixel."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from vitkit.finetuning.segmentation.names import METRICS
from vitkit.finetuning.segmentation.run import SegmentationResult
from vitkit.system.console.text import counted, printable_name
from vitkit.system.functions.steps import FILE, IMAGES, step

MOST = 30  # classes whose IoU is printed


def shown_masks(result: SegmentationResult, data: str, run_dir: Path) -> Iterator[str | Table]:
    """The candidates, the figures, the limit of what such a model sees, and what comes next."""
    if result.held_out:
        table = Table("", "mean IoU on held-out images")
        for name, metric in result.held_out:
            table.add_row(name, metric.text())
        yield table
        yield f"kept: {result.chosen}{_reason(result)}"
    if result.scores is not None:
        table = Table("", f"{counted(len(result.scores), 'image')} of {result.test_name}")
        for metric in result.metrics:
            label = metric.name.removeprefix("iou/")
            if metric.name in METRICS:
                table.add_row(METRICS[metric.name], metric.text())
            elif len(result.scores.labels) <= MOST:
                table.add_row(f"IoU of {printable_name(label)}", metric.text())
        yield table
        if result.worst:
            yield f"the lowest IoU have {', '.join(map(printable_name, result.worst))}"
    else:
        yield f"mean IoU on images that had no part in a fit: {result.left_out.text()}"
    patch = result.preprocessing.patch
    patches = result.preprocessing.patches
    more = f"more of them (`tokens={2 * patches}`) show smaller things, take longer, and are not always better"
    if result.grid is not None and not result.grid.is_better:
        more = f"{result.grid.patches:,} of them were not better"
    yield (
        f"the model reads {patches:,} patches of {patch[0]} x {patch[1]} pixels of an image, whatever its size: "
        f"things smaller than a patch are lost, and boundaries are as fine as patches; {more}"
    )
    written = f"{run_dir / 'model'}"
    if result.page is not None:
        written += f" and {result.page}"
    yield f"wrote {written}"
    yield "next:"
    yield f"  {step('segment', run_dir, IMAGES, to='masks')}   masks of other images"
    yield f"  {step('export', run_dir, output=FILE)}   for other programs"


def _reason(result: SegmentationResult) -> str:
    """Why a candidate with a higher mean IoU is not kept; empty if there is none."""
    values = {name: metric.value for name, metric in result.held_out}
    if values[result.chosen] >= max(values.values()):
        return ""
    more = max(1, round(5 * result.minutes))
    return (
        ", because the others are not better by more than chance; more time may help "
        f"(`minutes={more}`)"
    )
