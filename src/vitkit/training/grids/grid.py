"""A grid of runs: many recipes in one directory, and one table of their results.

Its cells are, for example, learning rates, seeds, the data sets of a suite, or the points of a figure. A cell
is an ordinary run in a directory of its own, which every command opens; or it measures something without
training, and its directory holds only the metrics. A grid that is run again skips its finished cells, continues
the interrupted one and retries failed ones. The table, `results.parquet`, is made from the files that the cells
have written.

Several processes may run one grid simultaneously, without knowing of each other: each cell is locked while it
runs. A locked cell is postponed until nothing else is left to do: by then it has finished, or its process has
died and the cell is continued here.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from vitkit.evaluation import Metric
from vitkit.recipes import Recipe
from vitkit.system.console.messages import log_bug, reason, say
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, Unavailable, VitkitError
from vitkit.system.processes.ranks import from_rank_0, process_group, world
from vitkit.system.storage.files import on_this_machine, whole, write_json
from vitkit.training.grids.rows import (
    COLUMNS,
    METRICS,
    RECORD,
    RESULTS,
    Row,
    Setting,
    read_record,
    read_rows,
    write_table,
)
from vitkit.training.loop import run_recipe
from vitkit.training.record.metrics import read_metrics, to_line
from vitkit.training.record.values import differences, to_json, with_defaults
from vitkit.training.run import locked
from vitkit.training.state.checkpoints import Busy, Occupied, earlier_call, refuse_other_recipe
from vitkit.training.state.finish import model_is_intact

CELL_LOCK = "cell.lock"  # file in a cell's directory that is locked while a process runs the cell
LOOKED = 2.0  # seconds between two checks of cells that other processes are running


class CellSettings(Protocol):
    """The settings of a cell that measures without training, as a frozen dataclass."""

    def measure(self, device: str) -> list[Metric]:
        """Measure, and return the metrics; cells are compared by the first. Every rank calls it. Raises
        VitkitError and FloatingPointError as a run does."""


class Passes(NamedTuple):
    """The cost of a measurement, as forward passes."""

    recipe: Recipe
    """The recipe whose model and batch size the passes use."""
    images: int
    """Number of images that pass through the model."""


@runtime_checkable
class Priced(Protocol):
    """A measurement that takes more than a few seconds and can estimate its cost."""

    def passes(self, before: Recipe) -> Passes:
        """The forward passes of the measurement, if `before` is the recipe of the cell that it follows."""


@dataclass(frozen=True)
class Best:
    """A run whose recipe depends on which of several earlier cells has the best result."""

    recipes: tuple[tuple[str, Recipe], ...]
    """The names of these cells, and the recipe to run if that cell is the best; of equal ones the first."""

    def recipe(self, grid_dir: Path) -> Recipe:
        """The recipe to run. Raises VitkitError if none of the cells has a result."""
        reached = []
        for name, recipe in self.recipes:
            for row in read_rows(grid_dir / name):
                if row.primary and row.cell == "." and row.metric is not None:
                    reached.append((row.metric, recipe))
        if not reached:
            raise BadSettings(
                f"it follows the best of {len(self.recipes)} cells, and none of them has a result"
            )
        highest, best = reached[0]
        for metric, recipe in reached[1:]:
            if metric.beats(highest):
                highest, best = metric, recipe
        return best


@dataclass(frozen=True)
class Cell:
    """One run of a grid, or one measurement."""

    name: str
    """The cell's directory within the grid's, such as "lr-0.01/seed-1"; "." is the grid's own."""
    recipe: Recipe | Best | CellSettings
    """The recipe to run, or the measurement."""
    settings: dict[str, Setting] = field(default_factory=dict)
    """Settings that distinguish the cell from others, such as {"lr": 0.01, "seed": 1}: each is a column of
    the table."""
    title: str = ""
    """Title in messages; by default the name."""
    after: str = ""
    """Name of an earlier cell whose model or result the cell needs; the same shard runs both. Empty for
    none."""

    def follows(self) -> list[str]:
        """The names of the cells that the choice of the recipe depends on."""
        if isinstance(self.recipe, Best):
            return [name for name, _ in self.recipe.recipes]
        return []

    def run(self) -> Recipe | None:
        """The recipe; if it depends on other cells, one of the candidates, which have the same model and
        length; None for a measurement."""
        if isinstance(self.recipe, Best):
            return self.recipe.recipes[0][1]
        if isinstance(self.recipe, Recipe):
            return self.recipe
        return None


# Running a grid


def run_grid(
    cells: Sequence[Cell],
    grid_dir: Path,
    device: str = "auto",
    shard: tuple[int, int] = (0, 1),
    alike: bool = False,
) -> list[Row]:
    """Run every cell that is not finished; returns the rows of all cells that have ended, and
    writes them to `results.parquet`.

    A cell that fails (it diverges, has too little memory, or its settings cannot run) is reported,
    and the others continue. Several processes that run the same grid share the cells: cells that another
    process is running are postponed, and waited for at the end. With `shard` (i, n) only every n-th cell
    runs, from the i-th on, with the cells that come after it; so n processes can share a grid without
    locks, and the last one writes the whole table. Under torchrun all ranks run each cell together.

    alike: whether an error before the first step of one cell would occur in all cells, as in runs that
        differ in a learning rate: then the first VitkitError ends the grid.

    Raises VitkitError for cells that cannot be one grid, and for a directory with other recipes'
    results; the first error, if every cell of the shard failed; Interrupted as `train` does.
    """
    _check_cells(cells, shard)
    own = of_shard(cells, shard)
    with process_group(device):
        errors = _run_unfinished(own, grid_dir, device, alike)
        rows = from_rank_0(lambda: _tabulate(cells, grid_dir))
    if errors and len(errors) == len(own):
        raise errors[0]
    return rows


def of_shard(cells: Sequence[Cell], shard: tuple[int, int]) -> list[Cell]:
    """The cells of a shard (i, n): every n-th cell without `after`, from the i-th on, and the cells after
    these."""
    index, count = shard
    first = [cell.name for cell in cells if not cell.after]
    own = set(first[index::count])
    for cell in cells:
        if cell.after in own:
            own.add(cell.name)
    return [cell for cell in cells if cell.name in own]


def most_shards(cells: Sequence[Cell]) -> int:
    """The largest number of shards of these cells without an empty one."""
    return sum(not cell.after for cell in cells)


def check_shard(shard: tuple[int, int]) -> None:
    """Raises VitkitError for a shard (i, n) unless 0 <= i < n."""
    index, count = shard
    if not 0 <= index < count:
        raise BadSettings(
            f"shard is {index} of {count}; shards are numbered from 0, so the last is {count - 1}"
        )


def _check_cells(cells: Sequence[Cell], shard: tuple[int, int]) -> None:
    """Raises VitkitError for cells that cannot share a directory or a table."""
    check_shard(shard)
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise BadSettings(
            f"two cells of a grid have one name, so they would share a directory: {names}"
        )
    before = set()
    for cell in cells:
        if cell.after and cell.after not in before:
            raise BadSettings(f"{cell.name!r} comes after {cell.after!r}, which is no earlier cell")
        before.add(cell.name)
        if Path(cell.name).as_posix() != cell.name or ".." in Path(cell.name).parts:
            raise BadSettings(
                f"a cell has the name {cell.name!r}; use the path of a folder within the grid's, such as "
                '"lr-0.01/seed-1"'
            )
        clashes = sorted(cell.settings.keys() & set(COLUMNS))
        if clashes:
            raise BadSettings(
                f"the table has a column {clashes[0]!r} of its own; give that setting another name"
            )


def finished(cells: Sequence[Cell], grid_dir: Path) -> list[str]:
    """The names of the finished cells. Raises Occupied if a directory has the run of another recipe."""
    return from_rank_0(lambda: [cell.name for cell in cells if _is_finished(cell, grid_dir)])


def _run_unfinished(
    cells: Sequence[Cell], grid_dir: Path, device: str, alike: bool
) -> list[Exception]:
    """Run the cells that are not finished, one after the other, and at the end the postponed ones; returns
    the errors of the cells that failed here. With `alike`, raises an error that all cells would have."""
    finished(cells, grid_dir)  # refuses directories of other recipes before anything runs
    before = from_rank_0(lambda: {cell.name: _record_of(cell, grid_dir) for cell in cells})
    errors = []
    to_do = list(enumerate(cells, 1))
    is_first_pass = True
    while to_do:
        postponed: dict[int, Cell] = {}
        for number, cell in to_do:
            title = cell.title or cell.name
            ended = from_rank_0(partial(_ended, cell, grid_dir, before[cell.name]))
            if ended:
                say(f"{title}: {ended}")
                continue
            if {cell.after, *cell.follows()} & {earlier.name for earlier in postponed.values()}:
                postponed[number] = cell
                continue
            if len(cells) > 1 and is_first_pass:
                say(f"{title} ({number} of {len(cells)})")
            try:
                error = _run(cell, grid_dir, device, before[cell.name])
            except Busy:
                if is_first_pass:
                    say(f"{title}: another process is running it")
                postponed[number] = cell
                continue
            if error is None:
                continue
            failed = "failed"
            if not isinstance(error, (VitkitError, torch.OutOfMemoryError)):
                failed = "failed (bug)"
            if alike and isinstance(error, VitkitError) and not _has_trained(grid_dir / cell.name):
                raise error
            errors.append(error)
            if len(cells) > 1:
                say(f"{title} {failed}, and has no value: {reason(error)}")

        # Wait for the cells that other processes are running
        if postponed and is_first_pass:
            say(
                f"other processes are running {counted(len(postponed), 'cell')} of {grid_dir}; this one "
                "waits for them, and continues cells that they leave unfinished"
            )
        if len(postponed) == len(to_do):
            time.sleep(LOOKED)
        to_do = list(postponed.items())
        is_first_pass = False
    return errors


def _record_of(cell: Cell, grid_dir: Path) -> tuple[int, int] | None:
    """The time and inode of a cell's record, which change when it is written; None if there is none."""
    try:
        state = (grid_dir / cell.name / RECORD).stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino


def _ended(cell: Cell, grid_dir: Path, before: tuple[int, int] | None) -> str:
    """A message about how a cell has ended; "" if it is still to be run. A cell that had failed before this
    call is retried; one that has failed since, in another process, is not. Raises Occupied if its directory
    has the run of another recipe.

    before: the cell's `_record_of` at the beginning of this call.
    """
    by_another = _record_of(cell, grid_dir) != before
    if _is_finished(cell, grid_dir):
        if by_another:
            return "finished by another process"
        return "finished before; another `workdir` starts a new one"
    record = read_record(grid_dir / cell.name / RECORD)
    if by_another and record is not None and record["error"] is not None:
        return f"failed in another process, and has no value: {record['error']}"
    return ""


def _has_trained(run_dir: Path) -> bool:
    """Whether a cell has logged anything after its first step. Every rank gets the same answer."""
    lines = from_rank_0(lambda: read_metrics(run_dir / METRICS))
    return any(line["step"] > 0 for line in lines)


def _tabulate(cells: Sequence[Cell], grid_dir: Path) -> list[Row]:
    """Write the table of all cells in the directory; returns the rows of these cells, in their order."""
    on_this_machine(grid_dir).mkdir(parents=True, exist_ok=True)  # a shard may have no cells
    rows = read_rows(grid_dir)
    write_table(rows, grid_dir / RESULTS)
    order = {cell.name: number for number, cell in enumerate(cells)}
    own = [row for row in rows if row.cell in order]
    return sorted(own, key=lambda row: order[row.cell])


def _is_finished(cell: Cell, grid_dir: Path) -> bool:
    """Whether a cell has run to its end. Raises Occupied if its directory has the run of another recipe."""
    run_dir = grid_dir / cell.name
    record = read_record(run_dir / RECORD)
    if record is None or record["error"] is not None:
        return False
    if cell.run() is not None and not model_is_intact(run_dir):
        return False
    possible = [cell.recipe]
    if isinstance(cell.recipe, Best):
        possible = [recipe for _, recipe in cell.recipe.recipes]
    for recipe in possible:
        ran = with_defaults(record["recipe"], recipe)
        if not differences(ran, to_json(recipe, Recipe)):
            return True
    refuse_other_recipe(run_dir, ran, to_json(recipe, Recipe))
    return True


def _run(
    cell: Cell, grid_dir: Path, device: str, before: tuple[int, int] | None
) -> Exception | None:
    """Run or continue a cell and write its record; returns the error if it failed. Raises Busy if
    another process is running it, or has just ended it."""
    run_dir = grid_dir / cell.name
    with ExitStack() as held:
        error: Exception | None = None
        recipe = cell.recipe
        try:
            held.enter_context(locked(run_dir, CELL_LOCK))
            if from_rank_0(lambda: _ended(cell, grid_dir, before)):
                raise Busy(f"another process has just ended {run_dir}")
            if isinstance(recipe, Best):
                recipe = from_rank_0(partial(recipe.recipe, grid_dir))
            if isinstance(recipe, Recipe):
                run_recipe(recipe, run_dir, device)
            else:
                _measure(recipe, run_dir, device)
        except (Occupied, Unavailable):  # another run is there, or the disk failed: write no record
            raise
        except VitkitError as failure:  # every rank raises these
            error = failure
        except torch.OutOfMemoryError as failure:
            # One rank of several cannot continue with the next cell: the others wait in a step of this one
            if world().world_size > 1:
                raise
            error = failure
        except Exception as failure:  # a bug, maybe in a user's recipe: the next cell may succeed
            if world().world_size > 1:
                raise
            log_bug(f"{cell.name} failed (bug)")
            error = failure

        record = {"settings": cell.settings, "error": None, "recipe": to_json(recipe, Recipe)}
        if error is not None:
            record["error"] = reason(error)
            # The frames of a traceback hold the model, whose memory the next cell needs
            error.__traceback__ = None
            error.__context__ = None
            error.__cause__ = None
        if run_dir.is_dir():  # it is missing if it could not be created
            from_rank_0(lambda: write_json(run_dir / RECORD, record))
    return error


def _measure(measurement: CellSettings, run_dir: Path, device: str) -> None:
    """Measure, and log the metrics as an evaluation at step 0. Raises Occupied if the directory has a run."""
    earlier = earlier_call(run_dir)
    if earlier.trained:
        refuse_other_recipe(run_dir, earlier.recipe, to_json(measurement, Recipe))
    from_rank_0(lambda: on_this_machine(run_dir).mkdir(parents=True, exist_ok=True))
    metrics = measurement.measure(device)
    line = {
        "event": "evaluation",
        "step": 0,
        "evaluator": type(measurement).__name__,
        "primary": metrics[0].name,
        "metrics": {metric.name: metric for metric in metrics},
    }
    from_rank_0(lambda: _write_line(line, run_dir / METRICS))


def _write_line(line: dict, path: Path) -> None:
    """Write a metrics file with one line."""
    with whole(path) as new:
        new.write_text(to_line(line), "utf-8")
