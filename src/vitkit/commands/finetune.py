"""`vitkit finetune`: published weights on images of one's own."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.commands import Defaults
from vitkit.commands.recipe import with_evals
from vitkit.data import Columns
from vitkit.evaluate import EvaluatorName
from vitkit.recipes.finetune import SWEEP, TABLE_4
from vitkit.recipes.finetune import finetune as paper
from vitkit.studies import Transfer, transfer
from vitkit.system.ranks import on_rank_0, process_group
from vitkit.system.watchdog import PATIENCE
from vitkit.train import Recipe


@dataclass
class Start:
    """What the defaults of a fine-tuning run follow from."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """Weights to begin with: a run, a model directory, a file in any format, or the name of a
    published model."""
    data: Annotated[Positional[str], arg(metavar="DATA")]
    """Images with labels: a folder, manifest, parquet file or data set."""
    preset: Literal["", "imagenet", "cifar100", "cifar10", "pets", "flowers", "vtab", "bit"] = ""
    """A row of the paper's Table 4, or BiT's rule. None is for images of one's own: fewer and
    smaller steps."""
    image: int = 0
    """Side of the images in pixels; positions are resampled to it. 0 is the preset's, or the
    model's own."""


@dataclass
class Known(Start):
    """Fine-tune published weights on images of one's own, as the paper does. `vitkit finetune MODEL
    DATA --help` lists every setting of the run, with the value that follows from these."""

    columns: Annotated[Columns, arg(name="data.columns")] = field(default_factory=Columns)
    """Which columns of a table hold the image and its label; found by their names unless told."""


@dataclass
class Finetune(Start):
    """Fine-tune published weights on images of one's own, as the paper does. The same command
    continues what was interrupted."""

    select: bool = False
    """Choose the learning rate first, on held-out training images, then train on everything but the
    test part."""
    rates: tuple[float, ...] = ()
    """Learning rates to choose from; unless told the preset's, or 0.001, 0.003, 0.01 and 0.03."""
    seeds: int = 1
    """Final runs, one a seed; their mean and standard deviation is said."""
    evaluators: Annotated[tuple[EvaluatorName, ...], arg(name="evals")] = ()
    """What measures the runs, instead of accuracy; each then has settings, such as --evals.0.every
    and --evals.0.data."""
    workdir: Path | None = None
    """Directory of the run; runs/NAME unless told."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    patience: float = PATIENCE
    """Seconds without progress after which a run of several processes (torchrun) ends and says
    which one is missing."""
    recipe: Annotated[Recipe, arg(name="")] = field(kw_only=True)


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the model, the data and the preset.

    With MODEL and DATA as the first words, --help lists all settings of the run; without them,
    those that the others follow from.
    """
    import tyro

    named = len(words) > 1 and not any(word.startswith("-") for word in words[:2])
    known_words = words
    if named:  # --help is for the second reading, of all settings
        known_words = [word for word in words if word not in ("-h", "--help")]
    known, _ = tyro.cli(Known, prog="vitkit finetune", args=known_words, return_unknown_args=True)
    recipe = paper(known.model, known.data, known.preset, known.image, known.columns)
    recipe = with_evals(recipe, words)
    settings = Finetune(known.model, known.data, known.preset, known.image, recipe=recipe)
    if named:
        return Defaults(settings, words=2)
    return Defaults(settings, words=0)


def finetune(command: Finetune) -> int:
    """`vitkit finetune`."""
    from vitkit.train.report import report

    run_dir = command.workdir or Path("runs") / command.recipe.name
    with process_group(command.device, command.patience):
        outcome = transfer(command.recipe, run_dir, _rates(command), command.seeds, command.device)
        if on_rank_0():
            _print_selection(outcome)
            _print_seeds(outcome)
            page = report(run_dir)
            print(f"wrote {run_dir / 'model'}, {run_dir / 'transfer.json'} and {page}")
            print(f"next: vitkit predict {run_dir} IMAGE..., or vitkit evaluate {run_dir} DATA")
    return 0


def _rates(command: Finetune) -> tuple[float, ...]:
    """The learning rates to choose from; empty for the recipe's own."""
    if command.rates or not command.select:
        return command.rates
    if command.preset in TABLE_4:
        return TABLE_4[command.preset].rates
    return SWEEP


def _print_selection(outcome: Transfer) -> None:
    """Print what each learning rate reached, and which was chosen."""
    if not outcome.selection:
        return
    name = outcome.selection[outcome.lr].name
    table = Table("learning rate", name, "")
    for rate, metric in outcome.selection.items():
        value = "failed"
        if metric is not None:
            value = metric.unit.text(metric.value)
        remark = ""
        if rate == outcome.lr:
            remark = "chosen"
        table.add_row(f"{rate:g}", value, remark)
    Console().print(table)

    # A rate at the end of a range may not be the best there is
    ends = (min(outcome.selection), max(outcome.selection))
    if len(outcome.selection) > 1 and outcome.lr in ends:
        print(
            f"the best rate, {outcome.lr:g}, is at the end of those tried: "
            "try beyond it with --rates"
        )


def _print_seeds(outcome: Transfer) -> None:
    """Print what the final runs reached, if there are several."""
    if len(outcome.runs) == 1 or None in outcome.runs.values():
        return
    first = next(iter(outcome.runs.values()))
    table = Table("seed", first.name)
    for seed, metric in outcome.runs.items():
        table.add_row(str(seed), metric.unit.text(metric.value))
    Console().print(table)
    mean, deviation = (first.unit.text(value) for value in outcome.mean())
    count = len(outcome.runs)
    print(f"{first.name}: {mean} ± {deviation} (mean and standard deviation of {count} seeds)")
