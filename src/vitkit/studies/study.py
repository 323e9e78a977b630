"""A study: a grid of recipes, what is measured, and the paper's table and figure of it.

Each of the paper's studies is a file in paper/, which makes a `Study`. `begin` decides how long its
runs are and writes that down, `run_study` runs them, and `results` reads what they reached: table
and figure are made from that, without running anything.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from vitkit.data import Splits, check_images, open_splits
from vitkit.objectives import Supervised
from vitkit.studies.base import small_vit
from vitkit.studies.budget import Budget, Plan, plan
from vitkit.studies.grid import Cell, run_grid
from vitkit.studies.results import Ask, Results, Table
from vitkit.studies.rows import Row, read_rows
from vitkit.system.files import write_json
from vitkit.system.ranks import from_rank_0
from vitkit.system.text import as_word, counted
from vitkit.training import Recipe
from vitkit.training.record import differences, to_json, with_defaults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHECKED = 100_000  # images of a part: to look at more before a study takes minutes
RECORD = "study.json"  # in a study's directory: what was asked, and the plan


def from_scratch(ask: Ask, splits: Splits) -> Recipe:
    """The run that most studies vary."""
    return small_vit(ask.data, splits)


@dataclass(frozen=True)
class Study:
    """One of the paper's studies."""

    name: str
    """What it is called on the command line."""
    summary: str
    """What it measures, in half a line."""
    measures: str
    """The same in some sentences: the grid, and what is compared."""
    found: str
    """What the paper found, and where."""
    limits: str
    """What a small budget can and cannot show."""
    cells: Callable[[Ask, int, Path], list[Cell]]
    """The grid, for ordinary runs of so many steps in a directory."""
    table: Callable[[Results], Table]
    """The table."""
    draw: Callable[[Results], "Figure"]
    """The figure."""
    budget: str = "30m"
    """By default."""
    needs: tuple[str, ...] = ("data",)
    """What must be asked for, by the names of `Ask`'s fields."""
    takes: tuple[str, ...] = ("recipe", "fewshot", "seeds")
    """What else may be; it has no use for the others."""
    base: Callable[[Ask, Splits], Recipe] = from_scratch
    """The run that is varied, if nobody gives a recipe."""
    check: Callable[[Ask], None] | None = None
    """Raises ValueError for what this study cannot do."""
    predict: Callable[[Results, str], list[str]] | None = None
    """For a study that fits a law: what it expects of so many images or exaFLOPs, or of a model."""


def begin(study: Study, ask: Ask, budget: str, study_dir: Path, device: str) -> tuple[Ask, Plan]:
    """What will run: as the directory says, if the study has begun there, else by the budget, which
    is then written down. Every later call, and every other shard, does the same.

    Raises ValueError for a directory with another study, or another ask, and as `plan` does.
    """
    for name in study.needs:
        if not getattr(ask, name):
            raise ValueError(
                f"the study {study.name} needs --{name}; vitkit study {study.name} --help"
            )
    unread = [name for name in _given(ask) if name not in study.needs + study.takes]
    if unread:
        raise ValueError(
            f"the study {study.name} has no use for --{unread[0]}; vitkit study {study.name} --help"
        )
    if ask.seeds < 1:
        raise ValueError(f"seeds is {ask.seeds}; it is the number of runs of each kind, 1 or more")
    splits = None
    if ask.data:
        splits = open_splits(ask.data)
        if ask.recipe is None:
            ask = _with_recipe(study, ask, splits)
        _refuse_without_accuracy(ask, splits)
    if study.check is not None:
        study.check(ask)
    record = from_rank_0(lambda: _recorded(study, ask, budget, study_dir))
    if record is not None:
        return ask, record
    decided = from_rank_0(lambda: _decide(study, ask, budget, splits, study_dir, device))
    return ask, decided


def _given(ask: Ask) -> list[str]:
    """The names of what was asked for, beside what is asked for by default."""
    return [field.name for field in fields(ask) if getattr(ask, field.name) != field.default]


def _with_recipe(study: Study, ask: Ask, splits: Splits) -> Ask:
    """The same with a run that suits the images."""
    if splits.train is None or not len(splits.train):
        raise ValueError(f"{ask.data} has no images to learn from, only others to measure on")
    return replace(ask, recipe=study.base(ask, splits))


def _refuse_without_accuracy(ask: Ask, splits: Splits) -> None:
    """Raises ValueError for images and objectives whose runs have no accuracy to be compared by: they
    would fail when they have ended."""
    if splits.target_kind != "class":
        raise ValueError(
            f"a study compares by accuracy, and the images of {ask.data} do not have one class each"
        )
    if not isinstance(ask.recipe.objective, Supervised):
        objective = type(ask.recipe.objective).__name__
        raise ValueError(
            f"a study compares by accuracy, and a --recipe that learns by {objective} names no classes; "
            "give one with labels"
        )


def _recorded(study: Study, ask: Ask, budget: str, study_dir: Path) -> Plan | None:
    """The plan of a study that has begun in a directory; None if none has. Raises ValueError if it
    was another one."""
    path = study_dir / RECORD
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_bytes())
    except ValueError:
        raise ValueError(
            f"{path} is damaged, and how long the runs are is known from it alone; choose another "
            "--workdir"
        ) from None
    changed = []
    if record["study"] != study.name:
        changed = [f"study: {record['study']} -> {study.name}"]
    if budget and Budget.parse(record["budget"]) != Budget.parse(budget):
        changed.append(f"budget: {record['budget']} -> {budget}")
    asked = to_json(ask) | {"seeds": record["ask"]["seeds"]}  # more of them are welcome
    changed += differences(with_defaults(record["ask"], ask), asked)
    if changed:
        raise ValueError(
            f"{study_dir} holds a study of other settings ({'; '.join(changed[:5])}); choose another "
            "--workdir, or remove it"
        )
    recorded = Plan(**record["plan"])
    runs = len(_recipes(study.cells(ask, recorded.steps, study_dir)))
    if runs == recorded.runs:
        return recorded
    share = runs / recorded.runs
    return Plan(recorded.steps, runs, recorded.exaflops * share, recorded.seconds * share)


def _recipes(cells: list[Cell]) -> list[Recipe]:
    """What is trained."""
    return [cell.recipe for cell in cells if isinstance(cell.recipe, Recipe)]


def _decide(
    study: Study, ask: Ask, budget: str, splits: Splits | None, study_dir: Path, device: str
) -> Plan:
    """Decide on the length of the runs, and write it down; if another process was faster, its
    decision holds."""
    budget = budget or study.budget
    decided = Plan(0, 0, 0.0, 0.0)
    allowed = Budget.parse(budget)
    if splits is not None:
        if not ask.recipe.data.check:
            _refuse_broken(ask, splits)
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
    try:
        (study_dir / RECORD).hardlink_to(own)  # fails if it is there
    except FileExistsError:
        decided = _recorded(study, ask, budget, study_dir)
    own.unlink()
    return decided


def _refuse_broken(ask: Ask, splits: Splits) -> None:
    """Raises ValueError for images that cannot be decoded: every run would end at them, for none
    looks at all images first. Of very many only the runs do."""
    for name in ("train", "val", "test"):
        part = getattr(splits, name)
        if part is None or len(part) > CHECKED:
            continue
        broken = check_images(part, ask.recipe.data.workers)
        if broken:
            raise ValueError(
                f"{counted(len(broken), 'image')} to {name} on cannot be used, and every run would end "
                f"there: {broken[0][1]}; remove what `vitkit doctor --data {as_word(ask.data)}` lists"
            )


def run_study(
    study: Study,
    ask: Ask,
    decided: Plan,
    study_dir: Path,
    device: str = "auto",
    shard: tuple[int, int] = (0, 1),
) -> Results:
    """Run every cell that is not finished, and read what all have reached. Raises as `run_grid`
    does."""
    cells = study.cells(ask, decided.steps, study_dir)
    if ask.data:
        images = len(open_splits(ask.data).train)
        cells = [_without_waste(cell, images) for cell in cells]
    run_grid(cells, study_dir, device, shard)
    return results(study, ask, decided, study_dir)


def _without_waste(cell: Cell, images: int) -> Cell:
    """The same cell; a run that sees fewer images than there are does not decode all of them
    first."""
    recipe = cell.recipe
    if not isinstance(recipe, Recipe) or recipe.length.n * recipe.batch >= images:
        return cell
    return replace(cell, recipe=replace(recipe, data=replace(recipe.data, keep_decoded=0.0)))


def results(study: Study, ask: Ask, decided: Plan, study_dir: Path) -> Results:
    """What the cells have reached so far, in the order of the grid; nothing is run."""
    order = {cell.name: i for i, cell in enumerate(study.cells(ask, decided.steps, study_dir))}

    def read(all_steps: bool) -> list[Row]:
        rows = [row for row in read_rows(study_dir, all_steps) if row.cell in order]
        return sorted(rows, key=lambda row: order[row.cell])

    return Results(ask, decided, read(False), read(True))
