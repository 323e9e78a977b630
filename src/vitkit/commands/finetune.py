"""`vitkit finetune`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.data import Columns
from vitkit.recipes.finetune import SWEEP, TABLE_4
from vitkit.recipes.finetune import finetune as paper
from vitkit.studies import Transfer, transfer
from vitkit.system.ranks import on_rank_0, process_group
from vitkit.system.watchdog import PATIENCE
from vitkit.train import Recipe


@dataclass
class Start:
    """What a fine-tuning recipe follows from."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """Weights to begin with: a run, a model directory, a file in any format, or the name of a published model."""
    data: Annotated[Positional[str], arg(metavar="DATA")]
    """Images with labels: a folder, manifest, parquet file or data set."""
    preset: Literal["", "imagenet", "cifar100", "cifar10", "pets", "flowers", "vtab", "bit"] = ""
    """A row of the paper's Table 4, or BiT's rule. None is for images of one's own: fewer and smaller steps."""
    image: int = 0
    """Side of the images in pixels; positions are resampled to it. 0 is the preset's, or the model's own."""


@dataclass
class Known(Start):
    """Fine-tune published weights on images of one's own, as the paper does. `vitkit finetune MODEL DATA --help` lists every
    setting of the run, with the value that follows from these."""

    columns: Annotated[Columns, arg(name="data.columns")] = field(default_factory=Columns)
    """Which columns of a table hold the image and its label; found by their names unless told."""


@dataclass
class Finetune(Start):
    """Fine-tune published weights on images of one's own, as the paper does. The same command continues what was interrupted."""

    select: bool = False
    """Choose the learning rate first, on held-out training images, then train on everything but the test part."""
    rates: tuple[float, ...] = ()
    """Learning rates to choose from; unless told the preset's, or 0.001, 0.003, 0.01 and 0.03."""
    seeds: int = 1
    """Final runs, one a seed; their mean and standard deviation is said."""
    workdir: Path | None = None
    """Directory of the run; runs/NAME unless told."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    patience: float = PATIENCE
    """Seconds without progress after which a run of several processes (torchrun) ends and says which one is missing."""
    recipe: Annotated[Recipe, arg(name="")] = field(kw_only=True)


def values(known: Known) -> Finetune:
    """The command with every setting at what follows from the model, the data and the preset."""
    recipe = paper(known.model, known.data, known.preset, known.image, known.columns)
    return Finetune(known.model, known.data, known.preset, known.image, recipe=recipe)


def finetune(command: Finetune) -> int:
    """`vitkit finetune`."""
    from vitkit.train.report import report

    workdir = command.workdir or Path("runs") / command.recipe.name
    grid = command.rates or (TABLE_4[command.preset].rates if command.preset in TABLE_4 else SWEEP)
    with process_group(command.device, command.patience):
        found = transfer(
            command.recipe,
            workdir,
            grid if command.select or command.rates else (),
            command.seeds,
            command.device,
        )
        if on_rank_0():
            _say(found)
            page = report(workdir)
            print(f"wrote {workdir / 'model'}, {workdir / 'transfer.json'} and {page}")
            print(f"next: vitkit predict {workdir} IMAGE..., or vitkit evaluate {workdir} DATA")
    return 0


def _say(found: Transfer) -> None:
    """What was chosen, and what the final runs reached."""
    if found.selection:
        table = Table("learning rate", "held-out top-1", "")
        for rate, value in found.selection.items():
            table.add_row(f"{rate:g}", f"{value:.2%}", "chosen" if rate == found.lr else "")
        Console().print(table)
        if len(found.selection) > 1 and found.lr in (min(found.selection), max(found.selection)):
            print(
                f"the best rate, {found.lr:g}, is at the end of those tried: try beyond it with --rates"
            )
    name = found.metric()
    if name and len(found.runs) > 1:
        table = Table("seed", name)
        for seed, metrics in found.runs.items():
            table.add_row(str(seed), f"{metrics[name]:.2%}")
        Console().print(table)
        mean, deviation = found.mean()
        print(
            f"{name}: {mean:.2%} ± {deviation:.2%} (mean and standard deviation of {len(found.runs)} seeds)"
        )
