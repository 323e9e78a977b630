"""Several runs side by side, as `vitkit report` and `vitkit compare` show them."""

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from vitkit.system.console.text import printable
from vitkit.training import Recorded, results, run_names, settings, verdict


def side_by_side(runs: Sequence[Recorded]) -> Iterator[str | Table]:
    """What runs reached, in what they differ, and which is best."""
    names = [escape(printable(name)) for name in run_names(runs)]
    different = settings(runs)
    for title, rows in (("", results(runs)), ("setting", different)):
        table = Table(title, *names)
        for column in table.columns:
            column.overflow = "fold"
        for row in rows:
            table.add_row(*(escape(printable(text)) for text in (row.name, *row.values)))
        if rows:
            yield table
    if not different:
        yield "their settings are the same"
    yield printable(verdict(runs))


def comparison_rows(runs: Sequence[Recorded]) -> list[dict]:
    """A row for each result and for each setting that differs, with a column for each run."""
    names = run_names(runs)
    rows = []
    for kind, several in (("result", results(runs)), ("setting", settings(runs))):
        for row in several:
            rows.append(
                {"kind": kind, "name": row.name, **dict(zip(names, row.values, strict=True))}
            )
    return rows
