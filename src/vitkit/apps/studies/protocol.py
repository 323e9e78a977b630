"""A study: a grid of recipes, its metrics, and the paper's table and figure.

The paper's studies are `Study` values in paper/. `begin` decides how long the runs are and records
that, `run_study` runs them, and `results` reads their metrics. Tables and figures are made from the
results, without running anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitkit.apps.studies.base import five_shot, small_vit
from vitkit.apps.studies.budget import Budget, BudgetPlan, plan
from vitkit.data import Splits, check_images, one_per_cpu, splits_at
from vitkit.evaluation import Metric, Survival
from vitkit.models import ViTConfig
from vitkit.objectives import Supervised
from vitkit.recipes import Recipe
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, printable
from vitkit.system.errors import BadData, BadImage, BadRun, BadSettings, VitkitError
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import check_can_be_made, check_types, parse_json, write_json
from vitkit.system.storage.records import record_of
from vitkit.training import (
    Best,
    Cell,
    Row,
    about_survival,
    differences,
    read_rows,
    run_grid,
    to_json,
    with_defaults,
)
from vitkit.training.choices import survival_by_pixels
from vitkit.training.data import open_others
from vitkit.training.grids.rows import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CHECKED = 100_000  # largest number of images that are checked before a study; more take minutes
RECORD = "study.json"  # in a study's directory: its settings and plan


@dataclass(frozen=True)
class Ask:
    """The settings of a study that the user gives."""

    data: str = ""
    """The images, in the form of `data.source`."""
    recipe: Recipe | None = None
    """The base recipe, which the study varies; None for the study's own."""
    fewshot: str = ""
    """Images for 5-shot accuracy, which replaces the runs' own accuracy; "" for none."""
    pretrain: tuple[str, ...] = ()
    """Data sets to pre-train on, in addition to `data`."""
    targets: tuple[str, ...] = ()
    """Data sets to transfer to."""
    model: str = ""
    """Published weights, for studies that begin with pre-trained models."""
    models: tuple[str, ...] = ()
    """Names of models, for studies of their cost."""
    sizes: tuple[int, ...] = ()
    """Image sizes: sides in pixels."""
    memory: float = 0.25
    """Memory limit of a batch on a CPU in GiB, for studies of cost."""
    seeds: int = 3
    """Number of runs of each setting."""
    regularise: bool = False
    """Whether weight decay, dropout and label smoothing are chosen for each small set (Figure 3)."""

    @property
    def varied(self) -> Recipe:
        """The base recipe of a study that trains, which `begin` has filled in."""
        assert self.recipe is not None, "a study without runs has no recipe"
        return self.recipe

    @property
    def vit(self) -> ViTConfig:
        """The model configuration of a study whose check requires a Vision Transformer."""
        assert isinstance(self.varied.model, ViTConfig), "the study's check requires it"
        return self.varied.model


class PaperTable(NamedTuple):
    """A table in the paper's form."""

    title: str
    """Title of the table."""
    columns: tuple[str, ...]
    """Their heads."""
    rows: Sequence[tuple[str, ...]]
    """The cells."""
    notes: list[str]
    """Further findings, one sentence each."""

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [f"**{self.title}**", "", f"| {' | '.join(self.columns)} |"]
        lines.append("|---" * len(self.columns) + "|")
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


class Results(NamedTuple):
    """The results of a study so far."""

    ask: Ask
    """The settings of the study."""
    plan: BudgetPlan
    """The length of the runs, from the budget."""
    rows: list[Row]
    """The metrics of every cell at its last evaluation."""
    curves: list[Row]
    """The metrics of every cell at each evaluation."""

    def curve(self, **settings: Setting) -> dict[int, list[Metric]]:
        """The main metric of the cells with these settings at each evaluation, by step."""
        by_step: dict[int, list[Metric]] = {}
        for row in _matching(self.curves, settings):
            assert row.step is not None  # rows of `curves` are evaluations, which have a step
            by_step.setdefault(row.step, []).append(row.measured)
        return dict(sorted(by_step.items()))

    def group(self, *names: str) -> dict[tuple, list[Metric]]:
        """The main metric of the cells, by the values of some settings, in the order of the cells."""
        groups: dict[tuple, list[Metric]] = {}
        for row in self.rows:
            if row.primary and all(name in row.settings for name in names):
                key = tuple(row.settings[name] for name in names)
                groups.setdefault(key, []).append(row.measured)
        return groups

    def by_seed(self, *names: str, **settings: Setting) -> dict[tuple, dict[int, Metric]]:
        """The main metric of the cells with given settings, by the values of other settings and by
        seed."""
        runs: dict[tuple, dict[int, Metric]] = {}
        for row in _matching(self.rows, settings):
            if "seed" in row.settings and all(name in row.settings for name in names):
                key = tuple(row.settings[name] for name in names)
                runs.setdefault(key, {})[int(row.settings["seed"])] = row.measured
        return runs

    def failures(self) -> list[str]:
        """A sentence for each cell that failed."""
        return [f"{row.cell} failed: {row.error}" for row in self.rows if row.error is not None]


def _matching(rows: Sequence[Row], settings: dict[str, Setting]) -> list[Row]:
    """The rows of main metrics, of cells with these settings."""
    return [row for row in rows if row.primary and settings.items() <= row.settings.items()]


def from_scratch(ask: Ask, splits: Splits) -> Recipe:
    """The base recipe of most studies."""
    return small_vit(ask.data, splits)


@dataclass(frozen=True)
class Study:
    """A study of the paper."""

    name: str
    """Name on the command line."""
    summary: str
    """Subject of the study, as a short phrase."""
    measures: str
    """Description of the grid and of what is compared, in some sentences."""
    found: str
    """The paper's finding, and where it is."""
    limits: str
    """What a small budget can and cannot show."""
    cells: Callable[[Ask, int, Path], list[Cell]]
    """Function of settings, steps of an ordinary run and directory, which returns the grid."""
    table: Callable[[Results], PaperTable]
    """The table."""
    draw: Callable[[Results], "Figure"]
    """The figure."""
    budget: str = "30m"
    """By default."""
    needs: tuple[str, ...] = ("data",)
    """Required settings, as names of `Ask`'s fields."""
    takes: tuple[str, ...] = ("recipe", "fewshot", "seeds")
    """Optional settings, as names of `Ask`'s fields; others are refused."""
    base: Callable[[Ask, Splits], Recipe] = from_scratch
    """Function that makes the base recipe, if the user gives none."""
    check: Callable[[Ask], None] | None = None
    """Function that raises VitkitError for settings that the study does not support."""
    predict: Callable[[Results, str], list[str]] | None = None
    """Function that predicts accuracy from a fitted law, for a number of images or exaFLOPs, or for
    a model."""


def begin(
    study: Study, ask: Ask, budget: str, study_dir: Path, device: str
) -> tuple[Ask, BudgetPlan]:
    """The plan of a study: the recorded one if the study has begun in this directory, otherwise one that
    follows from the budget, which is then recorded. So later calls and other shards use the same plan.
    Raises VitkitError for a directory of a different study or other settings, and as `plan` does."""
    for name in study.needs:
        if not getattr(ask, name):
            raise BadSettings(
                f"the study {study.name} needs `{name}`; vitkit study {study.name} -h"
            )
    unread = [name for name in _non_default(ask) if name not in study.needs + study.takes]
    if unread:
        raise BadSettings(
            f"the study {study.name} has no use for `{unread[0]}`; vitkit study {study.name} -h"
        )
    if ask.seeds < 1:
        raise BadSettings(
            f"`seeds` is {ask.seeds}; it is the number of runs of each kind, 1 or more"
        )
    splits = None
    if ask.data:
        splits = splits_at(ask.data, typed=True)
        if ask.recipe is None:
            refuse_without_classes(ask.data, splits)
            ask = replace(ask, recipe=study.base(ask, splits))
        refuse_without_accuracy(ask, splits)
        for source in (*ask.pretrain, *ask.targets):
            refuse_without_classes(source, splits_at(source, typed=True))
    if study.check is not None:
        study.check(ask)
    if study_dir.exists() and not study_dir.is_dir():
        raise BadSettings(
            f"{study_dir} is a file, and a study is a directory of runs; choose another `workdir`"
        )
    if splits is not None:  # last, because it decodes images
        ask = replace(ask, recipe=with_surviving_augmentation(ask, splits))
    record = from_rank_0(lambda: _recorded(study, ask, budget, study_dir))
    if record is not None:
        return ask, record
    decided = from_rank_0(lambda: _decide(study, ask, budget, splits, study_dir, device))
    return ask, decided


def with_surviving_augmentation(ask: Ask, splits: Splits) -> Recipe:
    """The base recipe with the augmentations that preserve the classes of the images, if it leaves this
    choice open. Chosen once, so that the runs differ only in what is studied. Logs the choice."""
    recipe = ask.varied
    augmentation = recipe.data.augmentation
    if not augmentation.auto:
        return recipe
    if splits.target_kind != "class":
        decided = replace(augmentation, auto=False)
    else:
        survival = from_rank_0(lambda: _survival(ask, splits))
        say(printable(f"training images: {about_survival(survival)}"))
        decided = replace(survival.augmentation, auto=False)
    return replace(recipe, data=replace(recipe.data, augmentation=decided))


def _survival(ask: Ask, splits: Splits) -> Survival:
    """Which augmentations preserve the classes of the training images. Raises VitkitError for images that
    cannot be decoded."""
    data = ask.varied.data
    assert splits.train is not None  # refuse_without_classes requires it
    try:
        return survival_by_pixels(data.preprocessing, splits.train, data.augmentation)
    except BadImage:
        refuse_broken(ask.data, data.workers)  # lists all of them
        raise


def _non_default(ask: Ask) -> list[str]:
    """The names of the settings that differ from their defaults."""
    return [field.name for field in fields(ask) if getattr(ask, field.name) != field.default]


def _recorded(study: Study, ask: Ask, budget: str, study_dir: Path) -> BudgetPlan | None:
    """The plan recorded in a directory; None if there is none. Raises VitkitError for a different
    study's."""
    path = study_dir / RECORD
    if not path.exists():
        return None
    try:
        record = parse_json(path.read_bytes())
    except ValueError:
        raise BadRun(
            f"{path} is damaged, and how long the runs are is known from it alone; choose another "
            "`workdir`"
        ) from None
    try:
        check_types(record, {"study": str, "budget": str, "ask": dict, "plan": dict})
        recorded = record_of(BudgetPlan, record["plan"])
        if min(recorded) < 0:
            raise BadRun("a number of its plan is negative")
        budget_then = Budget.parse(record["budget"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRun(
            f"{path} is damaged ({error}), and how long the runs are is known from it alone; choose "
            "another `workdir`"
        ) from None
    changed = []
    if record["study"] != study.name:
        changed = [f"study: {record['study']} -> {study.name}"]
    if budget and budget_then != Budget.parse(budget):
        changed.append(f"budget: {record['budget']} -> {budget}")
    asked = to_json(ask) | {"seeds": record["ask"].get("seeds")}  # the number of seeds may grow
    changed += differences(with_defaults(record["ask"], ask), asked)
    if changed:
        raise BadRun(
            f"{study_dir} holds a study of other settings ({'; '.join(changed[:5])}); choose another "
            "`workdir`, or remove it"
        )
    cells = study.cells(ask, recorded.steps, study_dir)
    runs = sum(cell.run() is not None for cell in cells)
    if runs == recorded.runs or not recorded.runs:
        return recorded
    share = runs / recorded.runs
    return BudgetPlan(recorded.steps, runs, recorded.exaflops * share, recorded.seconds * share)


def _decide(
    study: Study, ask: Ask, budget: str, splits: Splits | None, study_dir: Path, device: str
) -> BudgetPlan:
    """Decide on the length of the runs and record it; the first process to do so wins."""
    if ask.fewshot:
        try:
            open_others((five_shot(ask.fewshot),))
        except VitkitError as error:
            raise BadSettings(
                f"`fewshot` learns from the train part of {ask.fewshot} and measures on its test "
                f"part: {error}"
            ) from None
    check_can_be_made(study_dir)
    budget = budget or study.budget
    decided = BudgetPlan(0, 0, 0.0, 0.0)
    allowed = Budget.parse(budget)
    if splits is not None:
        if not ask.varied.data.check:
            for source in (ask.data, *ask.pretrain, *ask.targets):
                refuse_broken(source, ask.varied.data.workers)
        decided = plan(lambda steps: study.cells(ask, steps, study_dir), allowed, splits, device)
    study_dir.mkdir(parents=True, exist_ok=True)
    record = {
        "study": study.name,
        "budget": budget,
        "plan": decided._asdict(),
        "ask": to_json(ask),
    }
    own = study_dir / f"{RECORD}.{token_hex(4)}"
    write_json(own, record)
    if not _rename_if_new(own, study_dir / RECORD):
        recorded = _recorded(study, ask, budget, study_dir)
        assert recorded is not None  # another process has recorded its plan first
        return recorded
    return decided


def _rename_if_new(own: Path, to: Path) -> bool:
    """Rename a file unless the new name exists; returns whether it was renamed. Raises OSError."""
    try:
        to.hardlink_to(own)  # unlike a rename, this fails if the name exists
    except FileExistsError:
        return False
    except OSError:  # a file system without links, such as a memory card or a network share
        if to.exists():
            return False
        own.replace(to)
    finally:
        own.unlink(missing_ok=True)
    return True


def run_study(
    study: Study,
    ask: Ask,
    decided: BudgetPlan,
    study_dir: Path,
    device: str = "auto",
    shard: tuple[int, int] = (0, 1),
) -> Results:
    """Run every unfinished cell, and read the results of all. Raises as `run_grid` does."""
    cells = study.cells(ask, decided.steps, study_dir)
    if ask.data:
        counts = {}
        for source in (ask.data, *ask.pretrain, *ask.targets):
            train = splits_at(source, typed=True).train
            assert train is not None  # refuse_without_classes requires it
            counts[source] = len(train)
        cells = [_without_needless_cache(cell, counts) for cell in cells]
    run_grid(cells, study_dir, device, shard)
    return results(study, ask, decided, study_dir)


def _without_needless_cache(cell: Cell, counts: dict[str, int]) -> Cell:
    """The cell without caching of decoded images, if its run uses fewer images than there are."""
    run = cell.run()
    if run is None or run.length.n * run.batch >= counts.get(run.data.source, 0):
        return cell
    if isinstance(cell.recipe, Best):
        sparing = tuple((name, _without_cache(each)) for name, each in cell.recipe.recipes)
        return replace(cell, recipe=Best(sparing))
    return replace(cell, recipe=_without_cache(run))


def _without_cache(recipe: Recipe) -> Recipe:
    """The recipe without caching of decoded images."""
    return replace(recipe, data=replace(recipe.data, keep_decoded=0.0))


def results(study: Study, ask: Ask, decided: BudgetPlan, study_dir: Path) -> Results:
    """The results of the finished cells, in the order of the grid; nothing is run."""
    order = {cell.name: i for i, cell in enumerate(study.cells(ask, decided.steps, study_dir))}

    def read(all_steps: bool) -> list[Row]:
        """The metrics of all evaluations, or of the last ones, in the order of the grid."""
        rows = [row for row in read_rows(study_dir, all_steps) if row.cell in order]
        return sorted(rows, key=lambda row: order[row.cell])

    return Results(ask, decided, read(False), read(True))


# Images that no study supports are refused before the first run, since every run would fail


def refuse_without_accuracy(ask: Ask, splits: Splits) -> None:
    """Raises VitkitError for images and objectives without an accuracy for comparing the runs. Otherwise
    the study would fail only after its runs."""
    refuse_without_classes(ask.data, splits)
    if not isinstance(ask.varied.objective, Supervised):
        objective = type(ask.varied.objective).__name__
        raise BadSettings(
            f"a study compares by accuracy, and a `recipe` that learns by {objective} names no classes; "
            "give one with labels"
        )


def refuse_without_classes(source: str, splits: Splits) -> None:
    """Raises VitkitError for a data set without training images, or without one class per image."""
    if splits.train is None or not len(splits.train):
        raise BadData(f"{source} has no images to learn from, only others to measure on")
    if splits.target_kind != "class":
        raise BadData(
            f"a study compares by accuracy, and the images of {source} do not have one class each"
        )
    if len(np.unique(splits.train.target_array)) < 2:
        raise BadData(f"all images of {source} to learn from are of one class; give two or more")


def refuse_broken(source: str, workers: int) -> None:
    """Raises VitkitError if images cannot be decoded, because every run would fail at them. Of a
    very large data set not all images are checked.

    workers: number of decoding processes; -1 for one per CPU, since no model is running yet."""
    if workers < 0:
        workers = one_per_cpu()
    splits = splits_at(source, typed=True)
    for name, part in splits.sources.items():
        if len(part) > CHECKED:
            continue
        broken = check_images(part, workers)
        if broken:
            raise BadData(
                f"{counted(len(broken), 'image')} to {name} on cannot be used, and every run would end "
                f"there: {broken[0][1]}; remove what doctor with `data={str(source)!r}` lists"
            )
