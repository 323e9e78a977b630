"""Comparisons of runs for the terminal, as tables, and for programs, as rows."""

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from vitkit.system.console.text import printable
from vitkit.system.errors import VitkitError
from vitkit.training.record.history import Recorded, run_names
from vitkit.training.reports.comparison import common_answers, results, settings, verdict


def on_common_images(runs: Sequence[Recorded]) -> tuple[str, ...]:
    """A sentence about two runs on the images that both held out; none if there are no such images."""
    if len(runs) != 2:
        return ()
    try:
        common = common_answers(*runs)
    except (VitkitError, OSError) as error:
        return (f"their answers cannot be compared image by image: {error}",)
    if common is None:
        return ()
    return (common.sentence(*run_names(runs)),)


def side_by_side(runs: Sequence[Recorded], notes: Sequence[str] = ()) -> Iterator[str | Table]:
    """Yields tables of the results and settings of runs, and a sentence about which run is best. notes:
    sentences before that one."""
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
        yield "their settings are equal"
    yield from map(printable, notes)
    yield printable(verdict(runs))


def comparison_rows(runs: Sequence[Recorded]) -> list[dict]:
    """Rows for each result and for each setting that differs, with a value for each run."""
    names = run_names(runs)
    rows = []
    for kind, several in (("result", results(runs)), ("setting", settings(runs))):
        for row in several:
            rows.append(
                {"kind": kind, "name": row.name, **dict(zip(names, row.values, strict=True))}
            )
    return rows
