"""What a run would need, counted before anything is run."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

from rich.table import Table
from tyro.conf import arg

from vitkit.recipes import facts_of
from vitkit.system.console.messages import say
from vitkit.system.console.progress import working
from vitkit.system.console.text import readable
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.training import (
    GIB,
    Facts,
    Machine,
    Memory,
    Recipe,
    Spent,
    advice,
    count,
    divide,
    memory,
    open_to_divide,
    resolve,
    spent,
)
from vitkit.verbs.definition import result, verb_that_begins
from vitkit.verbs.training.train import RecipeOnImages, recipe_on_images
from vitkit.weights import preprocessing_for_channels


@dataclass(frozen=True)
class Plan:
    """Compute what a recipe needs on a number of GPUs: memory per GPU, exaFLOPs, time, energy, and
    the paper's TPUv3-core-days. Nothing is run."""

    recipe: Annotated[Recipe, arg(name="")]
    model_name: Annotated[str, arg(name="model")] = ""
    """Name of a model to use instead of the recipe's, such as S/16, R26+S/32 or BiT-R50x1; `vitkit
    models` lists the names."""
    machine: Annotated[Machine, arg(name="")] = field(default_factory=Machine)
    examples: int = 0
    """Number of training images; 0 counts the images of --data.source, or uses the size of the
    paper's data set."""
    classes: int = 1000
    """Number of classes, with --examples; with --data.source, the classes are counted."""


@result
@dataclass(frozen=True)
class Planned:
    """The resources that a run would need."""

    machine: Machine
    recipe: Recipe
    """The run, with every span in steps."""
    spent: Spent
    """Operations, time and energy."""
    memory: Memory | None
    """Of each GPU; None if it cannot be counted."""
    advice: str
    """What would make it fit, or go faster."""

    def rows(self) -> list[dict]:
        """A row for each use of memory, in GiB."""
        if self.memory is None:
            return []
        return [{"use": name, "GiB": value / GIB} for name, value in self.memory._asdict().items()]

    def shown(self) -> Iterator[str | Table]:
        """Memory as a table, and the rest in sentences."""
        if self.memory is not None:
            yield _memory_table(self.memory, self.recipe, self.machine)
        # What the whole run takes, in three sentences
        takes = self.spent
        recipe = self.recipe
        machine = self.machine
        gpus = f"{machine.gpus:,} GPUs"
        if machine.gpus == 1:
            gpus = "1 GPU"
        yield (
            f"{recipe.name}: {recipe.length.n:,} steps of {recipe.batch:,} in {recipe.precision}, "
            f"{readable(takes.exaflops)} exaFLOPs."
        )
        yield (
            f"On {gpus} at {machine.mfu:.0%} of {machine.tflops:g} TFLOPS: "
            f"{readable(takes.hours)} hours, {readable(takes.images_per_second)} images/s, "
            f"{readable(takes.kwh)} kWh."
        )
        least, most = map(readable, takes.tpu_core_days)
        yield f"At the speeds of the paper's own runs (Table 2): {least} to {most} TPUv3-core-days."
        if self.advice:
            yield self.advice
        processes = min(self.machine.gpus, 8)
        yield f"next: torchrun --nproc-per-node {processes} -m vitkit train RECIPE (docs/scaling.md)"


def begin_plan(first: RecipeOnImages, given: frozenset[str]) -> Plan:
    """All settings of a plan, from the recipe and the images."""
    return Plan(recipe_on_images(first, given))


@verb_that_begins(begin_plan)
def plan(settings: Plan) -> Planned:
    """Count what a recipe needs on a number of GPUs; nothing is run. Raises ValueError if the GPUs
    cannot share a batch equally, and if nobody knows how many images there are."""
    # The run, with every span in steps
    machine = settings.machine
    recipe = settings.recipe
    data = recipe.data
    preprocessing = preprocessing_for_channels(data.preprocessing, recipe.model.channels)
    recipe = replace(recipe, data=replace(data, preprocessing=preprocessing))
    recipe = resolve(recipe, _facts(settings))
    if recipe.precision == "auto":  # a run asks its machine; the GPUs that one plans for have it
        recipe = replace(recipe, precision="bfloat16")
    if recipe.batch % machine.gpus:
        raise BadSettings(
            f"a batch of {recipe.batch} cannot be shared equally by {machine.gpus} GPUs; "
            "choose a multiple"
        )

    # What it needs. What a step keeps cannot be counted for every objective
    takes = spent(recipe, machine)
    try:
        with working("counting what a step needs"):
            counts = count(recipe)
    except VitkitError as error:
        say(f"without its memory: {error}")
        return Planned(machine, recipe, takes, None, "")
    needs = memory(recipe, machine.gpus, counts)
    return Planned(machine, recipe, takes, needs, advice(recipe, machine, counts))


def _facts(settings: Plan) -> Facts:
    """How many images there are, and their classes: as the command says, or counted. Raises
    ValueError if there is nothing to count."""
    if settings.examples:
        return Facts(settings.examples, tuple(map(str, range(settings.classes))))
    recipe = settings.recipe
    data = recipe.data
    if not data.source:
        # The facts of the data set that a recipe of the paper is for; for a recipe whose length
        # does not depend on them, any
        published = facts_of(recipe.name)
        if published is not None:
            say(
                f"{published.examples:,} images of {len(published.labels):,} classes, as "
                f"{recipe.name} is for; `examples` and `classes` say others"
            )
            return published
        if recipe.length.unit == "epochs":
            raise BadSettings(
                f"the length is {recipe.length}, and the number of training images is unknown; "
                "give it with `examples`, such as `examples=1281167`, or give the images with "
                "`data.source`"
            )
        labels = tuple(map(str, range(settings.classes)))
        return Facts(recipe.batch, labels)
    splits = open_to_divide(data, typed=True)
    training = divide(splits, data)["train"]
    return Facts(len(training), tuple(splits.labels))


def _memory_table(needs: Memory, recipe: Recipe, machine: Machine) -> Table:
    """A row for each use of memory, and their sum."""
    images = min(recipe.micro_batch, recipe.batch // machine.gpus)
    titles = {"activations": f"activations of {images:,} images"}
    table = Table("on each GPU", "GiB")
    table.columns[1].justify = "right"
    for name, value in needs._asdict().items():
        table.add_row(titles.get(name, name), f"{value / GIB:,.2f}")
    table.add_section()
    table.add_row("together", f"{needs.total / GIB:,.2f}")
    return table
