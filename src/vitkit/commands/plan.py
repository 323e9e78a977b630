"""`vitkit plan`."""

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import arg

from vitkit.commands import Defaults
from vitkit.commands.recipe import first_recipe
from vitkit.train import Recipe
from vitkit.train.plan import Machine


@dataclass
class Plan:
    """What a recipe needs on so many GPUs: memory of each, exaFLOPs, time and energy; by formula, nothing is run."""

    recipe: Annotated[Recipe, arg(name="")]
    model_name: Annotated[str, arg(name="model")] = ""
    """Another model than the recipe's, by its name, such as S/16, R26+S/32 or BiT-R50x1; `vitkit models` lists them."""
    machine: Annotated[Machine, arg(name="")] = field(default_factory=Machine)
    examples: int = 0
    """Training images; 0 counts those of --data.source."""
    classes: int = 1000
    """Classes, where the images are not counted."""


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the recipe that the first word names."""
    return Defaults(Plan(first_recipe("plan", words)), words=1)


def plan(command: Plan) -> int:
    """`vitkit plan`."""
    from rich.console import Console
    from rich.table import Table

    from vitkit.data import open_splits
    from vitkit.train import Facts, resolve
    from vitkit.train.plan import GIB, advice, memory, spent
    from vitkit.train.run import divide

    machine, data = command.machine, command.recipe.data
    if command.examples:
        facts = Facts(command.examples, tuple(map(str, range(command.classes))))
    elif data.source:
        splits = open_splits(data.source, data.columns, data.split_seed)
        facts = Facts(len(divide(splits, data)["train"]), tuple(splits.labels), splits.target)
    else:
        raise ValueError("how many images? say --examples 1281167, or which with --data.source")
    recipe = resolve(command.recipe, facts)
    if recipe.batch % machine.gpus:
        raise ValueError(
            f"a batch of {recipe.batch} cannot be shared equally by {machine.gpus} GPUs; choose a multiple"
        )
    needs, takes = memory(recipe, machine.gpus), spent(recipe, machine)
    rows = min(recipe.micro_batch, recipe.batch // machine.gpus)
    table = Table("on each GPU", "GiB")
    table.columns[1].justify = "right"
    for name, value in needs._asdict().items():
        table.add_row(
            f"{name} of {rows:,} images" if name == "activations" else name, f"{value / GIB:,.2f}"
        )
    table.add_section()
    table.add_row("together", f"{needs.total / GIB:,.2f}")
    Console().print(table)
    print(
        f"{recipe.name}: {recipe.length} of {recipe.batch:,} in {recipe.precision}, {takes.exaflops:,.3g} exaFLOPs. On "
        f"{machine.gpus:,} GPU{'s' * (machine.gpus > 1)} at {machine.mfu:.0%} of {machine.tflops:g} TFLOPS: "
        f"{takes.hours:,.3g} hours, {takes.images_per_second:,.0f} images/s, {takes.kwh:,.3g} kWh."
    )
    print(advice(recipe, machine))
    print(
        f"next: torchrun --nproc-per-node {min(machine.gpus, 8)} -m vitkit train RECIPE (docs/scaling.md)"
    )
    return 0
