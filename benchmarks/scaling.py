"""Memory, speed and energy of a pre-training by model and number of GPUs, as `vitkit plan` computes them, as a table.

    python benchmarks/scaling.py --machine.memory 80

For each model and number of GPUs the largest power-of-two micro-batch that fits, at 224 x 224 in bfloat16 with Adam and
1,000 classes, with recomputing where nothing fits without. Nothing is run: the speed is the given share of the machine's best.
"""

from dataclasses import dataclass, field, replace

import tyro

from vitkit.models import vit
from vitkit.system.span import Span
from vitkit.train import Data, Facts, Recipe, resolve
from vitkit.train.memory import Count, count
from vitkit.train.plan import GIB, Machine, Memory, memory, spent


@dataclass
class Table:
    """What the table is of."""

    machine: Machine = field(default_factory=Machine)
    models: tuple[str, ...] = ("Ti/16", "S/16", "B/16", "L/16", "H/14", "g/14", "G/14")
    gpus: tuple[int, ...] = (1, 8, 64)
    batch: int = 4096


def fitting(recipe: Recipe, machine: Machine, counted: Count) -> tuple[Recipe, Memory] | None:
    """The recipe with the largest micro-batch that fits, recomputing if it must."""
    for recompute in (False, True):
        for rows in (2**i for i in range(12, -1, -1)):
            one = replace(recipe, micro_batch=rows, recompute=recompute)
            needs = memory(one, machine.gpus, counted)
            if rows <= recipe.batch // machine.gpus and needs.total <= machine.memory * GIB:
                return one, needs
    return None


def main(table: Table) -> None:
    """Print it in Markdown."""
    print(
        "| model | GPUs | weights to optimiser, GiB | micro-batch | all, GiB | images/s | kWh for 10^9 images |"
    )
    print("|---|---|---|---|---|---|---|")
    facts = Facts(10**9, tuple(map(str, range(1000))))
    for name in table.models:
        recipe = Recipe(
            vit(name, classes=0),
            Data("x"),
            batch=table.batch,
            precision="bfloat16",
            length=Span(1, "epochs"),
        )
        recipe = resolve(recipe, facts)
        counted = count(recipe)
        for gpus in table.gpus:
            machine = replace(table.machine, gpus=gpus)
            found = fitting(recipe, machine, counted)
            if found is None:
                print(f"| {name} | {gpus} | | none fits | | | |")
                continue
            fits, needs = found
            state, takes = sum(needs[:3]) / GIB, spent(fits, machine)
            rows = f"{fits.micro_batch:,}{' recomputed' if fits.recompute else ''}"
            print(
                f"| {name} | {gpus} | {state:.2f} | {rows} | {needs.total / GIB:.1f} | {takes.images_per_second:,.0f} "
                f"| {takes.kwh:,.0f} |"
            )


if __name__ == "__main__":
    main(tyro.cli(Table))
