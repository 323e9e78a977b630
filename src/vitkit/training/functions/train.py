"""`vitkit.train`: trains a model by a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from rich.table import Table

from vitkit.data import Columns, reading_arguments
from vitkit.evaluation import Eval, EvaluatorName, Metric
from vitkit.evaluation.evaluators import EVALUATORS
from vitkit.recipes import Recipe, with_model
from vitkit.recipes import recipe as recipe_called
from vitkit.system.console.messages import is_first, say
from vitkit.system.console.text import counted
from vitkit.system.functions.override import override_all
from vitkit.system.functions.public import alone, public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, IMAGES, step
from vitkit.system.functions.types import DataLike, DeviceLike, Fields, PathLike, Several, SpanLike
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.processes.watchdog import PATIENCE
from vitkit.system.span import Span
from vitkit.training.functions.keeping import keep
from vitkit.training.grids.selection import USUAL, Regularisation, regularised
from vitkit.training.grids.transfer_protocol import Transfer, transfer
from vitkit.training.loop import run_recipe
from vitkit.training.record.history import Recorded, read_run
from vitkit.training.reports.report import report as report_of_run
from vitkit.training.run import check_apart, default_run_dir, tidied
from vitkit.weights import Classifier, MadeModel, load

if TYPE_CHECKING:
    from vitkit.models import ViTConfig


if TYPE_CHECKING:
    RecipeLike: TypeAlias = str | Recipe
    ModelConfig: TypeAlias = str | ViTConfig
else:
    RecipeLike = Annotated[Any, "RECIPE", Fields((Recipe,))]
    ModelConfig = Annotated[Any, "NAME"]


def regularisation(
    regularise: bool,
    weight_decays: tuple[float, ...],
    dropouts: tuple[float, ...],
    label_smoothings: tuple[float, ...],
) -> Regularisation:
    """The values to try: the given ones; for settings without given values the default ones, if
    `regularise`."""
    usual = Regularisation()
    if regularise:
        usual = USUAL
    return Regularisation(
        weight_decays or usual.weight_decays,
        dropouts or usual.dropouts,
        label_smoothings or usual.label_smoothings,
    )


def recipe_on_images(
    recipe: RecipeLike,
    data: str,
    model: ModelConfig,
    evaluators: Sequence[str] | None,
    length: Span | None,
    given: frozenset[str],
) -> Recipe:
    """A recipe with these images, this model, these evaluators and this length.

    Args:
        recipe: A recipe, or the name of one.
        data: Images, instead of the recipe's; empty for the recipe's own.
        model: Name or configuration of a model to train; empty for the recipe's own.
        evaluators: Evaluators that measure the run; None or empty for the recipe's own.
        length: Length of the run; None for the recipe's own.
        given: The names of all settings that the caller sets, such as "optim.lr".

    Raises BadSettings if a name does not exist.
    """
    if not isinstance(recipe, Recipe):
        recipe = recipe_called(recipe)
    recipe = with_length(with_evals(recipe, evaluators or None), length, given)
    if data:
        recipe = replace(recipe, data=replace(recipe.data, source=data))
    if isinstance(model, str) and model:
        recipe = with_model(recipe, model)
    elif model:  # a configuration
        recipe = replace(recipe, model=model)
    return with_augmentation_as_given(recipe, given)


def dotted(settings: Mapping[str, Any]) -> frozenset[str]:
    """The names of settings, with dots for double underscores: {"optim__lr": 0.1} -> {"optim.lr"}."""
    return frozenset(name.replace("__", ".") for name in settings)


@dataclass(frozen=True, repr=False)
class Trained(Rows, MadeModel):
    """A run that has ended."""

    classifier: Classifier
    """The trained model."""
    run_dir: Path
    """The run's directory, with `model/`, metrics.jsonl, checkpoints and the report."""
    path: Path
    """The page of the run's report."""
    transfer: Transfer | None
    """The settings that were chosen on held-out images; None if none were."""

    @property
    def made(self) -> str:
        """The run's directory."""
        return str(self.run_dir)

    @property
    def run(self) -> Recorded:
        """The records of the run."""
        return read_run(self.run_dir)

    def rows(self) -> list[dict]:
        """A row for each evaluation: its step, and every metric."""
        rows: dict[int, dict[str, float]] = {}
        for name, points in self.run.points().items():
            for number, metric in points:
                rows.setdefault(number, {"step": number})[name] = metric.value
        return [rows[number] for number in sorted(rows)]

    def shown(self) -> Iterator[str | Table]:
        """The output: the chosen settings, the files that were written, and the next command."""
        if self.transfer is not None:
            yield from transfer_tables(self.transfer)
        yield f"wrote {self.run_dir / 'model'} and {self.path}"
        if not self.classifier.labels:
            yield f"next: {step('finetune', self.run_dir, DATA)}, which gives it a head"
            return
        data = self.run.recipe["data"]
        columns = Columns(**data["columns"])
        if data.get("masks"):
            evaluate = step(
                "evaluate", self.run_dir, data["source"], masks=data["masks"], columns=columns
            )
            yield f"next: {evaluate}, or {step('segment', self.run_dir, IMAGES, to='masks')}"
            return
        reading = reading_arguments(columns, data["groups"])
        evaluate = step("evaluate", self.run_dir, data["source"], **reading)
        yield f"next: {evaluate}, or {step('predict', self.run_dir, IMAGES)}"


@public
@alone
def train(
    recipe: RecipeLike,
    data: DataLike = "",
    *,
    model: ModelConfig = "",
    evaluators: Several[EvaluatorName] = (),
    length: SpanLike | None = None,
    regularise: bool = False,
    weight_decays: Several[float] = (),
    dropouts: Several[float] = (),
    label_smoothings: Several[float] = (),
    workdir: PathLike | None = None,
    device: DeviceLike = "auto",
    patience: float = PATIENCE,
    **settings: Any,
) -> Trained:
    """Train a model by a recipe, or continue the run in the directory.

    A run that is continued is the same, bit for bit, as if it had never been interrupted: on a CPU, and on
    a GPU if the recipe is `deterministic`. The report is written at its end.

    Args:
        recipe: A recipe, or the name of one: `vitkit.recipes.RECIPES`, or file.py:function.
        data: Images, instead of the recipe's.
        model: Name of a model to train instead of the recipe's, such as S/16, R26+S/32 or BiT-R50x1;
            `vitkit.list_models` lists the names. In a program also a configuration.
        evaluators: Evaluators that measure the run, instead of the recipe's. Each then has settings,
            such as `evals.0.every` and `evals.0.data`.
        length: How long the run is, such as 10epochs. Default: the recipe's length.
        regularise: First choose weight decay, dropout and label smoothing on held-out training images, as
            the paper does on its smaller data sets. Every combination of the following values is tried,
            and the recipe's own values.
        weight_decays: Weight decays to choose from. Default, with `regularise`: 0.03, 0.1 and 0.3.
        dropouts: Rates of dropout to choose from. Default, with `regularise`: 0 and 0.1.
        label_smoothings: Label smoothings to choose from. Default, with `regularise`: 0 and 0.1.
        workdir: Directory of the run. Default: a directory in runs/, named after the images and the
            recipe. Run the same command again to continue a run.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        patience: Seconds without progress after which a run of several processes (torchrun) ends and
            says which one is missing.
        **settings: Any setting of the recipe, with two underscores before the field of a part:
            batch=256, optim__lr=0.1. Also quiet=True, which logs nothing, and progress=FUNCTION, which
            receives all messages.

    Raises:
        BadSettings: If the recipe cannot run.
        BadData: If the images cannot be read.
        Interrupted: If the run was asked to stop, and has saved itself.
        Diverged: If the loss stays non-finite.
    """
    recipe = recipe_on_images(recipe, data, model, evaluators, length, dotted(settings))
    recipe = override_all("train", recipe, settings)
    values = regularisation(regularise, weight_decays, dropouts, label_smoothings)
    images = tidied(recipe.data.source)
    recipe = replace(recipe, data=replace(recipe.data, source=images))
    check_apart(workdir, images)
    run_dir = workdir or default_run_dir(images, recipe.name)
    page = run_dir / "report.html"
    with process_group(device, patience):
        if values:
            say_regularisation(recipe, values)
            outcome = transfer(recipe, run_dir, (), 1, device, values)
            classifier = load(run_dir, quiet=True)
        else:
            outcome = None
            classifier = run_recipe(recipe, run_dir, device)
        if on_rank_0():
            page = report_of_run(run_dir, typed=(images,))
    if is_first():
        keep(run_dir)
    return Trained(classifier, run_dir, page, outcome)


def with_evals(recipe: Recipe, names: Sequence[str] | None) -> Recipe:
    """The recipe with the evaluators of these names; unchanged for None. Unknown names are skipped: the
    caller has checked them."""
    if names is None:
        return recipe
    evals = tuple(Eval(EVALUATORS[name]) for name in names if name in EVALUATORS)
    return replace(recipe, evals=evals)


def with_length(recipe: Recipe, length: Span | None, given: frozenset[str]) -> Recipe:
    """The recipe with another length; unchanged for None. Unless the warm-up is among the given settings, it
    keeps its share of the length, and a message says so."""
    if length is None:
        return recipe
    before = recipe.length
    warmup = recipe.optim.warmup
    recipe = replace(recipe, length=length)
    if "optim.warmup" in given or not warmup.n or not before.n or warmup.unit != before.unit:
        return recipe
    number = length.n * (warmup.n / before.n)
    if length.unit == "steps":
        number = round(number)
    own = Span(number, length.unit)
    if own == warmup:
        return recipe
    say(
        f"the warm-up is {own}, the same share of `length` as the recipe's {warmup} of {before}; "
        "`optim.warmup` sets it"
    )
    return replace(recipe, optim=replace(recipe.optim, warmup=own))


def with_augmentation_as_given(recipe: Recipe, given: frozenset[str]) -> Recipe:
    """The recipe with the test of its augmentation switched off if the caller sets any setting of the
    augmentation other than `auto`; the caller's settings are then used as they are."""
    augmentation = recipe.data.augmentation
    own = [name for name in given if name.startswith("data.augmentation.")]
    sets_auto = any("auto" in name for name in own)
    if not own or sets_auto or not augmentation.auto:
        return recipe
    data = replace(recipe.data, augmentation=replace(augmentation, auto=False))
    return replace(recipe, data=data)


def say_regularisation(recipe: Recipe, values: Regularisation) -> None:
    """Print the number of runs that choose the regularisation."""
    if not values:
        return
    runs = counted(len(regularised(recipe, values)), "run")
    say(f"{runs} on held-out images choose the regularisation first, each as long as the final one")


def transfer_tables(outcome: Transfer) -> Iterator[str | Table]:
    """Yields tables of the values that were tried, and of the results of the final runs."""
    yield from _selection(outcome)
    if outcome.regularisation:
        tried = dict(outcome.regularisation)
        yield _tried_table("regularisation", tried, outcome.regularised)
    # The results of the final runs, if there are several
    reached = {seed: metric for seed, metric in outcome.runs.items() if metric is not None}
    if len(outcome.runs) == 1 or len(reached) < len(outcome.runs):
        return
    first = next(iter(reached.values()))
    table = Table("seed", first.name)
    for seed, metric in reached.items():
        table.add_row(str(seed), metric.unit.text(metric.value))
    yield table
    mean, deviation = (first.unit.text(value) for value in outcome.mean())
    count = len(outcome.runs)
    yield (f"{first.name}: {mean} ± {deviation} (mean and standard deviation of {count} seeds)")


def _selection(outcome: Transfer) -> Iterator[str | Table]:
    """Yields the table of the learning rates that were tried, and a warning if the best is the last of
    them."""
    if not outcome.selection:
        return
    tried = {f"{rate:g}": metric for rate, metric in outcome.selection.items()}
    yield _tried_table("learning rate", tried, f"{outcome.lr:g}")

    # Beyond the end of the range may be a better rate
    ends = (min(outcome.selection), max(outcome.selection))
    if len(outcome.selection) > 1 and outcome.lr in ends:
        yield (
            f"the best rate, {outcome.lr:g}, is at the end of those tried: "
            "try beyond it with `rates`"
        )


def _tried_table(title: str, tried: dict[str, Metric | None], chosen: str) -> Table:
    """A table of the values that were tried, and the metric of each."""
    best = tried[chosen]
    assert best is not None, "the chosen value has a metric"
    table = Table(title, best.name, "")
    for text, metric in tried.items():
        value = "failed"
        if metric is not None:
            value = metric.unit.text(metric.value)
        remark = ""
        if text == chosen:
            remark = "chosen"
        table.add_row(text, value, remark)
    return table
