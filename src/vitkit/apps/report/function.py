"""`vitkit report`: a page about one run, or about several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from rich.table import Table

from vitkit.finetuning import check_recorded, is_quick, write_page
from vitkit.system.console.text import counted, printable
from vitkit.system.errors import BadSettings
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import Placeholder, step
from vitkit.system.functions.types import DataLike, Messages, PathLike, Several
from vitkit.training import (
    Recorded,
    comparison_rows,
    is_run,
    on_common_images,
    read_run,
    side_by_side,
    write_comparison,
)
from vitkit.training import report as write_report


@dataclass(frozen=True, repr=False)
class WrittenReport(Rows):
    """The page about a run, or about several."""

    path: Path
    """The page."""
    runs: tuple[Recorded, ...]
    """The records of the runs."""
    notes: tuple[str, ...] = ()
    """A comparison of two runs' predictions for their common held-out images, in a sentence."""

    def rows(self) -> list[dict]:
        """One row per result, and one per setting that differs, with one column per run."""
        return comparison_rows(self.runs)

    def shown(self) -> Iterator[str | Table]:
        """The path of the page; for several runs also their results and differences."""
        first = self.runs[0].run_dir
        if len(self.runs) == 1:
            yield f"wrote {self.path}"
            yield f"next: {step('report', first, Placeholder('other'))}, with another run beside it"
            return
        yield from side_by_side(self.runs)
        yield from map(printable, self.notes)
        yield f"wrote {self.path}"
        yield f"next: {step('report', first)}, about one of them alone"


@public
def report(
    *runs: PathLike,
    output: PathLike | None = None,
    data: Several[DataLike] = (),
    **messages: Unpack[Messages],
) -> WrittenReport:
    """Write the report.html of a run again, with everything that it can show about the model:
    confused classes, the most confident mistakes and what the model looked at, filters, positions,
    attention. For several runs, write one page that compares results, curves, cost, and the
    settings that differ.

    Args:
        runs: Directories of runs, such as runs/digits.
        output: The page to write. Default: report.html in the directory of a single run, runs.html for
            several.
        data: Data sets that may be opened again although they are Python functions or addresses: vitkit
            does not run or fetch what only the run's own files name. Folders and files of this machine
            need not be listed.

    Raises:
        BadSettings: If no run is given, or one twice.
        BadRun: If a directory is not a run.
    """
    if not runs:
        raise BadSettings(
            f"no run: say whose report to write, as in {step('report', 'runs/digits')}"
        )
    for run_dir in runs:
        _check(run_dir)
    places = [run_dir.resolve() for run_dir in runs]
    for run_dir, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise BadSettings(f"{run_dir} is given twice; give each run once")

    if len(runs) == 1:
        (run_dir,) = runs
        page = _page_of(run_dir, output, data)
        return WrittenReport(page, (read_run(run_dir),))
    recorded = tuple(read_run(run_dir, data) for run_dir in runs)
    notes = on_common_images(recorded)
    page = write_comparison(output or Path("runs.html"), recorded, notes)
    return WrittenReport(page, recorded, notes)


def _page_of(run_dir: Path, path: Path | None, typed: Sequence[str]) -> Path:
    """Write the page about a run; for a quick run, the page of `vitkit finetune`. typed: names of
    data sets that a user typed."""
    if not is_quick(run_dir):
        return write_report(run_dir, inside=True, path=path, typed=typed)
    page = write_page(run_dir, path, typed)
    if page is None:
        raise BadSettings(
            f"{run_dir} was not measured on any image, because it has no test images; add more photographs"
        )
    return page


def _check(run_dir: Path) -> None:
    """Raises VitkitError for a directory that is not a run (with the runs inside it), or an
    incomplete quick run."""
    check_recorded(run_dir)
    inner = sorted(path.parent for path in run_dir.glob("*/recipe.json"))
    if is_run(run_dir) or not inner:
        return
    raise BadSettings(
        f"{run_dir} is not a run, but holds {counted(len(inner), 'run')}: {step('report', *inner[:3])}"
    )
