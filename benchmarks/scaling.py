"""The table of docs/scaling.md: memory, speed and energy of a pre-training.

    python benchmarks/scaling.py --machine.memory 80

Nothing is run: it prints what `vitkit plan` computes, in Markdown, for each model and number of
GPUs. That is at 224 x 224 in bfloat16 with Adam and 1,000 classes, with the largest power of two
as micro-batch that fits; blocks are recomputed only where nothing fits otherwise. The speed is the
given share of the GPU's best.
"""

from dataclasses import dataclass, field, replace

import tyro

from vitkit.models import vit
from vitkit.recipes import Data, Facts, Recipe, resolve
from vitkit.system.span import Span
from vitkit.training.footprint import Count, count
from vitkit.training.planning import GIB, Machine, PeakMemory, memory, spent

IMAGES = 10**9
TITLES = ("model", "GPUs", "weights to optimiser, GiB", "micro-batch", "all, GiB", "images/s")


@dataclass
class Table:
    """What the table is of."""

    machine: Machine = field(default_factory=Machine)
    models: tuple[str, ...] = ("Ti/16", "S/16", "B/16", "L/16", "H/14", "g/14", "G/14")
    gpus: tuple[int, ...] = (1, 8, 64)
    batch: int = 4096


def main(table: Table) -> None:
    print(f"| {' | '.join(TITLES)} | kWh for 10^9 images |")
    print("|---" * (len(TITLES) + 1) + "|")
    for name in table.models:
        recipe = pretraining(name, table.batch)
        counted = count(recipe)
        for gpus in table.gpus:
            machine = replace(table.machine, gpus=gpus)
            print(f"| {name} | {gpus} | {' | '.join(cells(recipe, machine, counted))} |")


def pretraining(name: str, batch: int) -> Recipe:
    """A model's training on 10^9 images of 1,000 classes, as it would run."""
    recipe = Recipe(
        vit(name, classes=0),
        Data("x"),
        batch=batch,
        precision="bfloat16",
        length=Span(1, "epochs"),
    )
    return resolve(recipe, Facts(IMAGES, tuple(map(str, range(1000)))))


def cells(recipe: Recipe, machine: Machine, counted: Count) -> list[str]:
    """What a row shows after the model and the number of GPUs."""
    fitting = largest_that_fits(recipe, machine, counted)
    if fitting is None:
        return ["", "none fits", "", "", ""]
    fitting, needs = fitting
    time = spent(fitting, machine)
    micro_batch = f"{fitting.micro_batch:,}"
    if fitting.recompute:
        micro_batch += " recomputed"
    return [
        f"{(needs.weights + needs.gradients + needs.optimizer) / GIB:.2f}",
        micro_batch,
        f"{needs.total / GIB:.1f}",
        f"{time.images_per_second:,.0f}",
        f"{time.kwh:,.0f}",
    ]


def largest_that_fits(
    recipe: Recipe, machine: Machine, counted: Count
) -> tuple[Recipe, PeakMemory] | None:
    """The recipe with the largest micro-batch that fits, recomputing if it must, and the memory
    that it needs; None if none fits."""
    for recompute in (False, True):
        for exponent in range(12, -1, -1):
            candidate = replace(recipe, micro_batch=2**exponent, recompute=recompute)
            if candidate.micro_batch > recipe.batch // machine.gpus:
                continue
            needs = memory(candidate, machine.gpus, counted)
            if needs.total <= machine.memory * GIB:
                return candidate, needs
    return None


if __name__ == "__main__":
    main(tyro.cli(Table))
