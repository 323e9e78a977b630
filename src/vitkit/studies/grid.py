"""A grid of runs: many recipes in one directory, one table of what they reached.

Learning rates, seeds, the data sets of a suite and the points of a figure are all cells of a grid. A cell is an ordinary run
in a directory of its own, which every command opens. Run again, a grid skips its finished cells, continues the interrupted
one and tries failed ones anew. The table, `results.parquet`, is made from what the cells wrote down, without running.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from vitkit.evaluate import Metric
from vitkit.evaluate.metric import plain_number
from vitkit.system.files import whole, write_json
from vitkit.system.ranks import from_rank_0, on_rank_0, process_group, world
from vitkit.train import Recipe, train
from vitkit.train.log import read_metrics
from vitkit.train.record import differences, to_json

RECORD = "cell.json"  # in a cell's directory, once it has ended: what it was, and why it failed
METRICS = "metrics.jsonl"  # there, what was measured on the way
RESULTS = "results.parquet"  # in the grid's directory
Setting = str | int | float | bool


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    name: str
    """Its directory within the grid's, such as "lr-0.01/seed-1"; "." is the grid's own."""
    recipe: Recipe
    """What runs there."""
    settings: dict[str, Setting] = field(default_factory=dict)
    """What distinguishes it from the others: a column each of the table, such as {"lr": 0.01, "seed": 1}."""
    title: str = ""
    """What the terminal says when it begins; its name unless told."""


class Row(NamedTuple):
    """One metric of a finished cell at its last evaluation; or a failed cell, which has none."""

    cell: str
    """Name of the cell."""
    settings: dict[str, Setting]
    """Its settings."""
    metric: Metric | None = None
    """What was measured, with its unit and interval; None for a failed cell."""
    primary: bool = False
    """Whether runs are compared by this metric: the first of the recipe's first evaluator, on the last part."""
    step: int | None = None
    """Training steps before the evaluation."""
    error: str | None = None
    """Why the cell failed; None for a finished one."""


COLUMNS = ("cell", "metric", "value", "low", "high", "unit", "primary", "step", "error")


def run_grid(
    cells: Sequence[Cell],
    grid_dir: Path,
    device: str = "auto",
    shard: tuple[int, int] = (0, 1),
) -> list[Row]:
    """Run every cell that is not finished; returns the rows of all that have ended, and writes them to `results.parquet`.

    A cell that diverges, has too little memory or has settings that cannot run is reported, and the rest goes on. With
    `shard` (i, n) only every n-th cell runs, from the i-th on: n processes share a grid, and whoever ends last has the whole
    table. Under torchrun all ranks run each cell together. Raises ValueError for cells that are no grid or a directory with
    other recipes' results; where no cell of the shard works, the first one's error; Interrupted as `train` does.
    """
    mine = _share(cells, shard)
    with process_group(device):
        errors = _run_waiting(mine, grid_dir, device)
        if errors and len(errors) == len(mine):
            raise errors[0]
        return from_rank_0(lambda: _tabulate(cells, grid_dir))


def _run_waiting(cells: Sequence[Cell], grid_dir: Path, device: str) -> list[Exception]:
    """Run the cells that are not finished, one after the other; returns the errors of those that failed."""
    waiting = from_rank_0(lambda: [cell.name for cell in cells if not _is_finished(cell, grid_dir)])
    console = Console(quiet=not on_rank_0(), highlight=False, markup=False, soft_wrap=True)
    errors = []
    for number, cell in enumerate(cells, 1):
        title = cell.title or cell.name
        if cell.name not in waiting:
            console.print(f"{title}: finished before; another --workdir starts a new one")
            continue
        if len(cells) > 1:
            console.print(f"{title} ({number} of {len(cells)})")
        error = _run(cell, grid_dir / cell.name, device)
        if error is None:
            continue
        errors.append(error)
        if len(cells) > 1:
            console.print(f"{title} failed, and has no value: {error}")
    return errors


def _tabulate(cells: Sequence[Cell], grid_dir: Path) -> list[Row]:
    """Write the table of all that has ended in the directory; returns the rows of these cells, in their order."""
    rows = read_rows(grid_dir)
    write_table(rows, grid_dir / RESULTS)
    order = {cell.name: number for number, cell in enumerate(cells)}
    own = [row for row in rows if row.cell in order]
    return sorted(own, key=lambda row: order[row.cell])


def read_rows(grid_dir: Path) -> list[Row]:
    """The rows of every cell that has ended, by name, from what the cells wrote down; nothing is run."""
    rows = []
    for path in sorted(grid_dir.rglob(RECORD)):
        name = str(path.parent.relative_to(grid_dir))
        record = json.loads(path.read_text("utf-8"))
        if record["error"] is not None:
            rows.append(Row(name, record["settings"], error=record["error"]))
        else:
            rows += _measured(name, record["settings"], path.parent / METRICS)
    return rows


def _measured(name: str, settings: dict[str, Setting], metrics_file: Path) -> list[Row]:
    """The rows of a finished cell: what every evaluator of its recipe said at the last evaluation."""
    evaluations = [line for line in read_metrics(metrics_file) if "metrics" in line]
    rows = []
    for line in evaluations:
        if line["step"] != evaluations[-1]["step"]:
            continue
        for metric in line["metrics"].values():
            primary = metric.name == line.get("primary")
            rows.append(Row(name, settings, metric, primary, line["step"]))
    return rows


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Rows as a parquet file with the columns cell, one for every setting, metric, value, low and high (the interval of 95 %
    confidence), unit, primary, step, error; what is not there, or no number, is null. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    settings = list(dict.fromkeys(name for row in rows for name in row.settings))
    columns = {"cell": pa.array([row.cell for row in rows], pa.string())}
    for name in settings:
        columns[name] = _column([row.settings.get(name) for row in rows])
    metrics = [_plain(row.metric) for row in rows]
    columns["metric"] = pa.array([metric["name"] for metric in metrics], pa.string())
    for name in ("value", "low", "high"):
        columns[name] = pa.array([metric[name] for metric in metrics], pa.float64())
    columns["unit"] = pa.array([metric["unit"] for metric in metrics], pa.string())
    columns["primary"] = pa.array([row.primary for row in rows], pa.bool_())
    columns["step"] = pa.array([row.step for row in rows], pa.int64())
    columns["error"] = pa.array([row.error for row in rows], pa.string())
    with whole(path) as new:
        pq.write_table(pa.table(columns), new)


def _plain(metric: Metric | None) -> dict:
    """A metric as a table holds it."""
    if metric is None:
        return dict.fromkeys(("name", "value", "low", "high", "unit"))
    value, _ = plain_number(metric.value)
    low, high = metric.interval or (None, None)
    return {
        "name": metric.name,
        "value": value,
        "low": low,
        "high": high,
        "unit": metric.unit.name,
    }


def _column(values: list):
    """Settings as an array: numbers where all are numbers, else text."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])


def _share(cells: Sequence[Cell], shard: tuple[int, int]) -> list[Cell]:
    """The cells of one shard. Raises ValueError for cells that cannot share a directory or a table."""
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(
            f"shard is {index} of {count}; shards count from 0, so the last is {count - 1}"
        )
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise ValueError(
            f"two cells of a grid have one name, so they would share a directory: {names}"
        )
    for cell in cells:
        clashes = sorted(cell.settings.keys() & set(COLUMNS))
        if clashes:
            raise ValueError(
                f"the table has a column {clashes[0]!r} of its own; call that setting something else"
            )
    return list(cells[index::count])


def _is_finished(cell: Cell, grid_dir: Path) -> bool:
    """Whether the cell has run to its end. Raises ValueError where another recipe has, which is not to be overwritten."""
    run_dir = grid_dir / cell.name
    if not (run_dir / RECORD).exists():
        return False
    record = json.loads((run_dir / RECORD).read_text("utf-8"))
    if record["error"] is not None or not (run_dir / "model" / "config.json").exists():
        return False
    changed = differences(record["recipe"], to_json(cell.recipe))
    if changed:
        raise ValueError(
            f"{run_dir} holds a run of another recipe ({'; '.join(changed[:5])}); choose another --workdir, "
            f"or remove it"
        )
    return True


def _run(cell: Cell, run_dir: Path, device: str) -> Exception | None:
    """Run a cell, or continue it, and write down how it ended; returns its error where it failed."""
    error = None
    try:
        train(cell.recipe, run_dir, device)
    except (FloatingPointError, ValueError) as failure:  # which every rank raises alike
        error = failure
    except torch.OutOfMemoryError as failure:
        if world().world_size > 1:  # the others wait in the middle of a step, and cannot go on
            raise
        error = failure

    record = {"settings": cell.settings, "error": None, "recipe": to_json(cell.recipe)}
    if error is not None:
        error.__traceback__ = error.__context__ = error.__cause__ = (
            None  # they hold the model's memory
        )
        record["error"] = str(error)
    if run_dir.is_dir():  # else not even that could be made
        from_rank_0(lambda: write_json(run_dir / RECORD, record))
    return error
