"""`vitkit plan`: what a run would need, counted before anything is run."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import arg

from vitkit.commands import Defaults
from vitkit.commands.recipe import first_recipe
from vitkit.recipes import facts_of
from vitkit.system.console.text import readable
from vitkit.training import GIB, Facts, Machine, Memory, Recipe, Spent


@dataclass
class Plan:
    """Count what a recipe needs on a number of GPUs: memory of each, exaFLOPs, time, energy, and the
    paper's TPUv3-core-days. Nothing is run."""

    recipe: Annotated[Recipe, arg(name="")]
    model_name: Annotated[str, arg(name="model")] = ""
    """Name of a model to plan for instead of the recipe's, such as S/16, R26+S/32 or BiT-R50x1; `vitkit
    models` lists them."""
    machine: Annotated[Machine, arg(name="")] = field(default_factory=Machine)
    examples: int = 0
    """Training images; 0 counts those of --data.source, or takes those of the data set that a recipe
    of the paper is for."""
    classes: int = 1000
    """Classes, for --examples; those of --data.source are counted."""


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the recipe and the images that the first words name."""
    recipe, count = first_recipe("plan", words, "--gpus N --memory GIB --examples N")
    return Defaults(Plan(recipe), count)


def plan(command: Plan) -> int:
    """Print what a run needs. Raises ValueError if the GPUs cannot share a batch equally."""
    from vitkit.training import advice, count, memory, resolve, spent
    from vitkit.weights import preprocessing_for_channels

    # The run, with every span in steps
    machine = command.machine
    recipe = command.recipe
    data = recipe.data
    preprocessing = preprocessing_for_channels(data.preprocessing, recipe.model.channels)
    recipe = replace(recipe, data=replace(data, preprocessing=preprocessing))
    recipe = resolve(recipe, _facts(command))
    if recipe.precision == "auto":  # a run asks its machine; the GPUs that one plans for have it
        recipe = replace(recipe, precision="bfloat16")
    if recipe.batch % machine.gpus:
        raise ValueError(
            f"a batch of {recipe.batch} cannot be shared equally by {machine.gpus} GPUs; "
            "choose a multiple"
        )

    # What it needs. What a step keeps cannot be counted for every objective
    with Console(stderr=True).status("counting what a step needs"):
        takes = spent(recipe, machine)
        try:
            counts = count(recipe)
        except ValueError as error:
            counts = None
            print(f"without its memory: {error}")
    if counts is not None:
        _print_memory(memory(recipe, machine.gpus, counts), recipe, machine)
    _print_time(takes, recipe, machine)
    if counts is not None:
        print(advice(recipe, machine, counts))
    processes = min(machine.gpus, 8)
    print(f"next: torchrun --nproc-per-node {processes} -m vitkit train RECIPE (docs/scaling.md)")
    return 0


def _facts(command: Plan) -> Facts:
    """How many images there are, and their classes: as the command says, or counted. Raises
    ValueError if there is nothing to count."""
    from vitkit.data import open_splits
    from vitkit.training import divide

    if command.examples:
        return Facts(command.examples, tuple(map(str, range(command.classes))))
    recipe = command.recipe
    data = recipe.data
    if not data.source:
        return _facts_without_images(recipe, command.classes)
    splits = open_splits(data.source, data.columns, data.split_seed)
    training = divide(splits, data)["train"]
    return Facts(len(training), tuple(splits.labels))


def _facts_without_images(recipe: Recipe, classes: int) -> Facts:
    """The facts of the data set that a recipe of the paper is for; for a recipe whose length does not
    depend on them, any. Raises ValueError for another."""
    published = facts_of(recipe.name)
    if published is not None:
        print(
            f"{published.examples:,} images of {len(published.labels):,} classes, as {recipe.name} "
            "is for; --examples and --classes say others"
        )
        return published
    if recipe.length.unit == "epochs":
        raise ValueError(
            f"the length is {recipe.length}, and the number of training images is unknown; give it "
            "with --examples, such as --examples 1281167, or give the images with --data.source"
        )
    labels = tuple(map(str, range(classes)))
    return Facts(recipe.batch, labels)


def _print_memory(needs: Memory, recipe: Recipe, machine: Machine) -> None:
    """Print a table with a row for each use of memory, and their sum."""
    images = min(recipe.micro_batch, recipe.batch // machine.gpus)
    titles = {"activations": f"activations of {images:,} images"}
    table = Table("on each GPU", "GiB")
    table.columns[1].justify = "right"
    for name, value in needs._asdict().items():
        table.add_row(titles.get(name, name), f"{value / GIB:,.2f}")
    table.add_section()
    table.add_row("together", f"{needs.total / GIB:,.2f}")
    Console().print(table)


def _print_time(takes: Spent, recipe: Recipe, machine: Machine) -> None:
    """Print what the whole run takes, in three sentences."""
    gpus = f"{machine.gpus:,} GPUs"
    if machine.gpus == 1:
        gpus = "1 GPU"
    print(
        f"{recipe.name}: {recipe.length.n:,} steps of {recipe.batch:,} in {recipe.precision}, "
        f"{readable(takes.exaflops)} exaFLOPs."
    )
    print(
        f"On {gpus} at {machine.mfu:.0%} of {machine.tflops:g} TFLOPS: "
        f"{readable(takes.hours)} hours, {readable(takes.images_per_second)} images/s, "
        f"{readable(takes.kwh)} kWh."
    )
    least, most = map(readable, takes.tpu_core_days)
    print(f"At the speeds of the paper's own runs (Table 2): {least} to {most} TPUv3-core-days.")
