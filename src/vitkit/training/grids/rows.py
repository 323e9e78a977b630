"""The table of a grid: the metrics of its cells, read from the files that they have written."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitkit.evaluation import Metric
from vitkit.evaluation.metrics.metric import plain_number
from vitkit.system.storage.files import parse_json, whole
from vitkit.training.record.metrics import read_metrics, up_to_best

RECORD = "cell.json"  # in a cell's directory: its recipe, its settings, and its error if it failed
METRICS = "metrics.jsonl"  # in a cell's directory: its metrics
RESULTS = "results.parquet"  # in the grid's directory: the table
Setting = str | int | float | bool


class Row(NamedTuple):
    """A row of the table: a metric of a finished cell at its last evaluation, or a failed cell."""

    cell: str
    """Name of the cell."""
    settings: dict[str, Setting]
    """Settings of the cell."""
    metric: Metric | None = None
    """The metric, with its unit and interval; None for a failed cell."""
    primary: bool = False
    """Whether this is the metric by which runs are compared."""
    step: int | None = None
    """The training step of the evaluation."""
    error: str | None = None
    """Why the cell failed; None for a finished one."""

    @property
    def measured(self) -> Metric:
        """The metric of a cell that has not failed."""
        assert self.metric is not None, f"{self.cell} has failed"
        return self.metric


COLUMNS = ("cell", "metric", "value", "low", "high", "unit", "primary", "step", "error")


def read_record(path: Path) -> dict | None:
    """The record of a cell that has ended; None if it has not, or if the file is damaged, so that the cell
    runs again."""
    try:
        record = parse_json(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(record, dict) or not {"settings", "error", "recipe"} <= record.keys():
        return None
    return record


def read_rows(grid_dir: Path, all_steps: bool = False) -> list[Row]:
    """The rows of every cell of a directory that has ended, sorted by name: of its last evaluation, or of
    the best if the run keeps its best weights; with `all_steps`, of every evaluation."""
    rows = []
    for path in sorted(grid_dir.rglob(RECORD)):
        name = str(path.parent.relative_to(grid_dir))
        record = read_record(path)
        if record is None:
            continue
        if record["error"] is not None:
            rows.append(Row(name, record["settings"], error=record["error"]))
        else:
            lines = read_metrics(path.parent / METRICS)
            if not all_steps:
                lines = up_to_best(lines, record["recipe"].get("best", ""))
            rows += _measured(name, record["settings"], lines, all_steps)
    return rows


def _measured(
    name: str, settings: dict[str, Setting], lines: Sequence[dict], all_steps: bool
) -> list[Row]:
    """The rows of a finished cell: of its last evaluation, or of all."""
    evaluations = [line for line in lines if "metrics" in line]
    rows = []
    for line in evaluations:
        if line["step"] != evaluations[-1]["step"] and not all_steps:
            continue
        for metric in line["metrics"].values():
            primary = metric.name == line.get("primary")
            rows.append(Row(name, settings, metric, primary, line["step"]))
    return rows


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write rows to a parquet file. Its columns are cell, one for each setting, metric, value, low
    and high (the interval of 95 % confidence), unit, primary, step, error. Values that are absent,
    or not a number, are null. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # The cells and their settings, in order of appearance
    columns = {"cell": pa.array([row.cell for row in rows], pa.string())}
    for row in rows:
        for name in row.settings:
            if name not in columns:
                columns[name] = _column([each.settings.get(name) for each in rows])

    # The metrics
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
    """A metric as the values of its columns."""
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
    """The column of a setting: of the type of its values if they have one in common, else text."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])
