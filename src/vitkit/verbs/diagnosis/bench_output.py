"""What `bench` shows and writes: a table, a recommendation, the numbers, and a picture."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from vitkit.benching import Contender, Speed, draw, is_good
from vitkit.exporting import Trial
from vitkit.runtimes import VERSIONED, threads
from vitkit.system.console.terminal import terminal_width
from vitkit.system.matmul import processor
from vitkit.system.storage.files import MARK, write_json
from vitkit.system.storage.private import public
from vitkit.verbs.arguments import word_of
from vitkit.weights import Activation

if TYPE_CHECKING:
    from vitkit.verbs.diagnosis.bench import Bench

WIDE = 120  # columns of a terminal that the whole table fits into


def tables(settings: "Bench", found: Sequence[Contender], speeds: Sequence[Speed]) -> Iterator[str]:
    """A table, a row for each; in a narrow terminal two, one below the other."""
    heads = [f"images/s\nbatch {batch}" for batch in settings.batch]
    heads += ["p50 ms", "p95 ms", "start s", "MB", "same", "cost", "accuracy"]
    rows = []
    for contender, speed in zip(found, speeds, strict=True):
        rows.append((contender.name, *_cells(settings, contender, speed)))
    if terminal_width() >= WIDE:
        yield _columns(heads, rows, range(len(heads)))
        return
    answers = len(settings.batch) + 2  # behind images a second and p95
    yield _columns(heads, rows, range(answers))
    yield _columns(heads, rows, range(answers, len(heads)))


def _columns(heads: Sequence[str], rows: Sequence[tuple[str, ...]], columns: Iterable[int]) -> str:
    """Some of the columns, behind the names of the rows, however wide."""
    table = Table(box=None, pad_edge=False)
    table.add_column("runtime")
    for column in columns:
        table.add_column(heads[column], justify="right")
    for name, *cells in rows:
        table.add_row(name, *(cells[column] for column in columns))
    console = Console(width=WIDE, highlight=False, file=StringIO())
    console.print(table)
    return console.file.getvalue().rstrip("\n")


def _cells(settings: "Bench", contender: Contender, speed: Speed) -> list[str]:
    """The numbers of a row; "" where there is none."""
    cells = [f"{speed.images_per_second[batch]:.1f}" for batch in settings.batch]
    cells += ["", "", "", ""]
    if speed.p50 is not None:
        cells[-4] = f"{speed.p50:.1f}"
        cells[-3] = f"{speed.p95:.1f}"
    if speed.start is not None:
        cells[-2] = f"{speed.start:.2f}"
    if speed.megabytes is not None:
        cells[-1] = f"{speed.megabytes:.0f}"
    agreement = contender.agreement
    if agreement is None:
        return [*cells, "", "", ""]
    accuracy = ""
    if agreement.accuracy is not None:
        accuracy = f"{agreement.accuracy:.1%}"
    return [*cells, f"{agreement.same:.1%}", f"{agreement.cost:.2%}", accuracy]


def recommendation(
    settings: "Bench",
    found: Sequence[Contender],
    speeds: Sequence[Speed],
    activation: Activation,
) -> str:
    """Which to take, and how: of those whose answers are as near the model's as an exported file's
    must be."""
    batch = max(settings.batch)
    exact = next(i for i, contender in enumerate(found) if contender.name == "PyTorch float32")
    base = speeds[exact].images_per_second[batch]
    fit = []
    for i, contender in enumerate(found):
        if contender.agreement is not None and is_good(contender, activation):
            fit.append(i)
    lines = []
    same = [i for i in fit if found[i].precision == "float32"]
    best_of = {}
    for title, among in (("the fastest with the same answers", same), ("the fastest", fit)):
        best = max(among, key=lambda i: speeds[i].images_per_second[batch])
        if best not in best_of.values():
            best_of[title] = best
    for title, best in best_of.items():
        if best == exact:
            lines.append(f"{title}: PyTorch float32; nothing is faster at batch {batch}")
            continue
        ratio = speeds[best].images_per_second[batch] / base
        line = f"{title}: {found[best].name}, {ratio:.2f} times PyTorch float32 at batch {batch}"
        if found[best].file is not None:
            ending = found[best].file.suffix
            words = f"vitkit export {word_of(settings.model)} -o model{ending}"
            if found[best].precision != "float32":
                words += f" --precision {found[best].precision} --data DATA"
            if found[best].is_calibrated:
                words += " --calibrate DATA"
            line += f"; {words}"
        lines.append(line)
    if settings.data == "":
        lines.append(
            "these answers are to parts of two photographs: --data DATA compares on your own"
        )
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Those of what computes, as far as it is installed."""
    found = {}
    for package in VERSIONED:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def described(
    settings: "Bench", found: Sequence[Contender], speeds: Sequence[Speed], trial: Trial
) -> dict:
    """All that was measured, and on what."""
    rows = []
    for contender, speed in zip(found, speeds, strict=True):
        agreement = contender.agreement
        if agreement is not None:
            agreement = public(asdict(agreement))
        rows.append(
            {
                "library": contender.library,
                "precision": contender.precision,
                "calibrated": contender.is_calibrated,
                "less": contender.less,
                **speed.to_json(),
                "agreement": agreement,
            }
        )
    load = None
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
    return {
        "made": MARK,
        "model": public(word_of(settings.model)),
        "images": public(trial.name),
        "machine": processor(),
        "threads": threads(),
        "versions": versions(),
        "load": load,
        "date": date.today().isoformat(),
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "runtimes": rows,
    }


def write(path: Path, written: dict, found: Sequence[Contender], speeds: Sequence[Speed]) -> None:
    """The numbers, or a picture of them."""
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".json":
        write_json(path, written)
        return

    draw(path, found, speeds)
