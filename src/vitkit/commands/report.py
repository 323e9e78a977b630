"""`vitkit report`: a run on one page, or several side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.system.console.text import as_word, counted


@dataclass
class Report:
    """Write a run's report.html again, with all that can be seen of its model: confused classes, the
    most confident mistakes beside what the model looked at, filters, positions, attention.

    Several runs are set side by side on one page: results, curves, cost, and the settings that
    differ."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...")]
    """Directories of runs, such as runs/digits."""
    output: Path | None = None
    """The page to write. Default: report.html in the directory of a single run, runs.html for
    several."""


def report(command: Report) -> int:
    """`vitkit report`."""
    if not command.runs:
        raise ValueError("no run: say whose report to write, as in vitkit report runs/digits")
    for run_dir in command.runs:
        _check(run_dir)
    places = [run_dir.resolve() for run_dir in command.runs]
    for run_dir, place in zip(command.runs, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{run_dir} is given twice; give each run once")
    if len(command.runs) == 1:
        return _of_one(command)
    return _of_several(command)


def _check(run_dir: Path) -> None:
    """Raises ValueError for what is no run, with the runs that are in it."""
    from vitkit.training import is_run

    inner = sorted(path.parent for path in run_dir.glob("*/recipe.json"))
    if is_run(run_dir) or not inner:
        return
    words = " ".join(as_word(path) for path in inner[:3])
    raise ValueError(
        f"{run_dir} is no run, but holds {counted(len(inner), 'run')}: vitkit report {words}"
    )


def _of_one(command: Report) -> int:
    """Write the report of a run."""
    from vitkit.training import report as write_report

    (run_dir,) = command.runs
    page = write_report(run_dir, inside=True, path=command.output)
    print(f"wrote {page}")
    print(f"next: vitkit report {as_word(run_dir)} OTHER sets another run beside it")
    return 0


def _of_several(command: Report) -> int:
    """Print what several runs reached and in what they differ, and write a page about it."""
    from vitkit.commands.compare import print_comparison
    from vitkit.training import read_run, write_comparison

    runs = [read_run(run_dir) for run_dir in command.runs]
    print_comparison(runs)
    page = write_comparison(command.output or Path("runs.html"), runs)
    print(f"wrote {page}")
    print(f"next: vitkit report {as_word(command.runs[0])} is about one of them alone")
    return 0
