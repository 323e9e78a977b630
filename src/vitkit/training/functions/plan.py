"""`vitkit.plan`: the resources that a run would need, computed without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from vitkit.data import TargetKind
from vitkit.evaluation import EvaluatorName
from vitkit.objectives import Segmentation
from vitkit.recipes import Facts, Recipe, facts_of, resolve
from vitkit.system.console.messages import say
from vitkit.system.console.progress import working
from vitkit.system.console.text import readable
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.system.functions.override import override_all
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.types import DataLike, Several, SpanLike
from vitkit.training.data import divide, open_to_divide
from vitkit.training.footprint import count
from vitkit.training.functions.train import ModelConfig, RecipeLike, dotted, recipe_on_images
from vitkit.training.planning import GIB, Machine, PeakMemory, Spent, advice, spent
from vitkit.training.planning import memory as memory_of
from vitkit.weights import preprocessing_for_channels


@dataclass(frozen=True, repr=False)
class Planned(Rows):
    """The resources that a run would need."""

    machine: Machine
    recipe: Recipe
    """The resolved recipe, with every span in steps."""
    spent: Spent
    """Operations, time and energy."""
    memory: PeakMemory | None
    """Memory of each GPU; None if it cannot be counted."""
    advice: str
    """Whether the run fits into memory, and what to change."""

    def rows(self) -> list[dict]:
        """A row for each use of memory, in GiB."""
        if self.memory is None:
            return []
        return [{"use": name, "GiB": value / GIB} for name, value in self.memory._asdict().items()]

    def shown(self) -> Iterator[str | Table]:
        """Memory as a table, and the rest in sentences."""
        if self.memory is not None:
            yield _memory_table(self.memory, self.recipe, self.machine)
        # The cost of the whole run, in three sentences
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


@public
def plan(
    recipe: RecipeLike,
    data: DataLike = "",
    *,
    model: ModelConfig = "",
    evaluators: Several[EvaluatorName] = (),
    length: SpanLike | None = None,
    gpus: int = Machine.gpus,
    memory: float = Machine.memory,
    tflops: float = Machine.tflops,
    mfu: float = Machine.mfu,
    watts: float = Machine.watts,
    examples: int = 0,
    classes: int = 1000,
    **settings: Any,
) -> Planned:
    """Compute what a recipe needs on a number of GPUs: memory per GPU, exaFLOPs, time, energy, and
    the paper's TPUv3-core-days. Nothing is run.

    Args:
        recipe: A recipe, or the name of one: `vitkit.recipes.RECIPES`, or file.py:function.
        data: Images, instead of the recipe's.
        model: Name of a model to use instead of the recipe's, such as S/16, R26+S/32 or BiT-R50x1;
            `vitkit.list_models` lists the names. In a program also a configuration.
        evaluators: Evaluators that would measure the run, instead of the recipe's.
        length: How long the run is, such as 10epochs. Default: the recipe's length.
        gpus: Number of GPUs; each runs one process.
        memory: Memory of one GPU in GiB.
        tflops: Peak of one GPU in 10^12 floating-point operations a second: an H100 has 989 in bfloat16
            and 67 in float32, an A100 312 and 19.5.
        mfu: Model FLOPs utilisation: the share of the peak that training reaches.
        watts: Power of one GPU and its share of the host, under load.
        examples: Number of training images; 0 counts the images of `data.source`, or uses the size of
            the paper's data set.
        classes: Number of classes, with `examples`; with `data.source`, the classes are counted.
        **settings: Any setting of the recipe, with two underscores before the field of a part:
            batch=256, optim__lr=0.1. Also quiet=True, which logs nothing, and progress=FUNCTION, which
            receives all messages.

    Raises:
        BadSettings: If the GPUs cannot share a batch equally, or the number of images is unknown.
    """
    recipe = recipe_on_images(recipe, data, model, evaluators, length, dotted(settings))
    recipe = override_all("plan", recipe, settings)
    machine = Machine(gpus, memory, tflops, mfu, watts)

    # Resolve the recipe: every span in steps
    preprocessing = preprocessing_for_channels(recipe.data.preprocessing, recipe.model.channels)
    recipe = replace(recipe, data=replace(recipe.data, preprocessing=preprocessing))
    recipe = resolve(recipe, _facts(recipe, examples, classes))
    if recipe.precision == "auto":  # training GPUs support bfloat16, which a run there would choose
        recipe = replace(recipe, precision="bfloat16")
    if recipe.batch % machine.gpus:
        raise BadSettings(
            f"a batch of {recipe.batch} cannot be shared equally by {machine.gpus} GPUs; "
            "choose a multiple"
        )

    # Compute its needs. The memory cannot be counted for every objective
    takes = spent(recipe, machine)
    try:
        with working("counting what a step needs"):
            counts = count(recipe)
    except VitkitError as error:
        say(f"without its memory: {error}")
        return Planned(machine, recipe, takes, None, "")
    needs = memory_of(recipe, machine.gpus, counts)
    return Planned(machine, recipe, takes, needs, advice(recipe, machine, counts))


def _facts(recipe: Recipe, examples: int, classes: int) -> Facts:
    """The number of images and the classes: the given ones if `examples` is above 0, else counted. Raises
    BadSettings if there are no images to count."""
    kind: TargetKind = "class"
    if isinstance(recipe.objective, Segmentation):
        kind = "mask"
    if examples:
        return Facts(examples, tuple(map(str, range(classes))), kind)
    data = recipe.data
    if data.source:
        splits = open_to_divide(data, typed=True)
        training = divide(splits, data)["train"]
        return Facts(len(training), tuple(splits.labels), kind)

    # The facts of the data set of a recipe of the paper. Other recipes get made-up facts, if their length
    # does not depend on them
    published = facts_of(recipe.name)
    if published is not None:
        say(
            f"{published.examples:,} images of {len(published.labels):,} classes, the data set of "
            f"{recipe.name}; `examples` and `classes` change that"
        )
        return published
    if recipe.length.unit == "epochs":
        raise BadSettings(
            f"the length is {recipe.length}, and the number of training images is unknown; "
            "give it with `examples`, such as `examples=1281167`, or give the images with "
            "`data.source`"
        )
    return Facts(recipe.batch, tuple(map(str, range(classes))), kind)


def _memory_table(needs: PeakMemory, recipe: Recipe, machine: Machine) -> Table:
    """A table with a row for each use of memory, and their sum."""
    images = min(recipe.micro_batch, recipe.batch // machine.gpus)
    titles = {"activations": f"activations of {images:,} images"}
    table = Table("on each GPU", "GiB")
    table.columns[1].justify = "right"
    for name, value in needs._asdict().items():
        table.add_row(titles.get(name, name), f"{value / GIB:,.2f}")
    table.add_section()
    table.add_row("together", f"{needs.total / GIB:,.2f}")
    return table
