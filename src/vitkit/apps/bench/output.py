"""Printed output of `vitkit bench`: tables, and a recommendation."""

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

from vitkit.exporting import Implementation, RuntimeSpeed
from vitkit.exporting.speed.candidates import is_good
from vitkit.system.console.text import terminal_width
from vitkit.system.functions.steps import DATA, step
from vitkit.weights import Activation, Classifier

WIDE = 120  # terminal width that the whole table needs, columns


def tables(found: Sequence[Implementation], speeds: Sequence[RuntimeSpeed]) -> Iterator[str]:
    """A table with one row per candidate, without empty columns; in a narrow terminal two tables,
    one below the other."""
    batches = list(speeds[0].images_per_second)
    heads = [f"images/s\nbatch {batch}" for batch in batches]
    heads += ["p50 ms", "p95 ms", "start s", "MB", "same", "cost", "accuracy"]
    rows = []
    for implementation, speed in zip(found, speeds, strict=True):
        rows.append((implementation.name, *_cells(implementation, speed)))
    filled = [i for i in range(len(heads)) if any(cells[i] for _, *cells in rows)]
    if terminal_width() >= WIDE:
        yield _columns(heads, rows, filled)
        return
    answers = len(batches) + 2  # index of the first column after images per second and p95
    yield _columns(heads, rows, [i for i in filled if i < answers])
    if rest := [i for i in filled if i >= answers]:
        yield _columns(heads, rows, rest)


def _columns(heads: Sequence[str], rows: Sequence[tuple[str, ...]], columns: Iterable[int]) -> str:
    """A table with some of the columns, after the names of the rows."""
    table = Table(box=None, pad_edge=False)
    table.add_column("runtime")
    for column in columns:
        table.add_column(heads[column], justify="right")
    for name, *cells in rows:
        table.add_row(name, *(cells[column] for column in columns))
    text = StringIO()
    Console(width=WIDE, highlight=False, file=text).print(table)
    return text.getvalue().rstrip("\n")


def _cells(implementation: Implementation, speed: RuntimeSpeed) -> list[str]:
    """The cells of a row; "" where there is no value."""
    cells = [f"{rate:.1f}" for rate in speed.images_per_second.values()]
    cells += ["", "", "", ""]
    if speed.p50 is not None:
        cells[-4] = f"{speed.p50:.1f}"
        cells[-3] = f"{speed.p95:.1f}"
    if speed.start is not None:
        cells[-2] = f"{speed.start:.2f}"
    if speed.megabytes is not None:
        cells[-1] = f"{speed.megabytes:.0f}"
    agreement = implementation.agreement
    if agreement is None or agreement.of_numbers:
        return [*cells, "", "", ""]
    accuracy = ""
    if agreement.accuracy is not None:
        accuracy = f"{agreement.accuracy:.1%}"
    return [*cells, f"{agreement.same:.1%}", f"{agreement.cost:.2%}", accuracy]


def recommendation(
    model: str | Classifier,
    found: Sequence[Implementation],
    speeds: Sequence[RuntimeSpeed],
    activation: Activation,
) -> str:
    """Sentences about the fastest runtimes whose agreement is within the bounds of exported files,
    and the call that writes such a file."""
    batch = max(speeds[0].images_per_second)
    exact = next(
        i for i, implementation in enumerate(found) if implementation.name == "PyTorch float32"
    )
    base = speeds[exact].images_per_second[batch]
    fit = []
    for i, implementation in enumerate(found):
        if implementation.agreement is not None and is_good(implementation, activation):
            fit.append(i)
    lines = []
    same = [i for i in fit if found[i].precision == "float32"]
    best_of: dict[str, int] = {}
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
        file = found[best].file
        if file is not None:
            ending = file.suffix
            settings = {}
            if found[best].precision != "float32":
                settings = {"precision": found[best].precision, "data": DATA}
            if found[best].is_calibrated:
                settings["calibrate"] = DATA
            line += f"; {step('export', model, output=f'model{ending}', **settings)}"
        lines.append(line)
    return "\n".join(lines)
