"""What `vitkit study` prints and writes: the studies, what will run, table and figure."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.studies import (
    RESULTS,
    STUDIES,
    Ask,
    Plan,
    Results,
    Study,
    duration,
    read_rows,
    write_table,
)
from vitkit.system.console.terminal import fill, two_columns
from vitkit.system.console.text import as_word, counted, printable
from vitkit.system.storage.files import whole

if TYPE_CHECKING:
    from vitkit.commands.study import RunStudy


def description(study: Study) -> str:
    """What a study is, for people."""
    needs = " and ".join(f"--{name}" for name in study.needs) or "nothing"
    takes = ", ".join(f"--{name}" for name in study.takes)
    length = f"Without --budget its runs take {study.budget} together."
    if "data" not in study.needs:
        length = "Nothing is trained, so it has no use for a --budget."
    return "\n\n".join(
        [
            fill(f"{study.name}: {study.summary}"),
            fill(f"Measures: {study.measures}"),
            fill(f"The paper: {study.found}"),
            fill(f"A small budget: {study.limits}"),
            fill(f"It needs {needs}, and takes {takes}. {length}") + "\n",
        ]
    )


def listing() -> str:
    """Every study, with half a line each."""
    rows = [(name, each.summary) for name, each in STUDIES.items()]
    end = "vitkit study NAME --help says what it measures, what it costs and what the paper found."
    return "\n".join(
        ["usage: vitkit study NAME --data DATA", "", *two_columns(rows), "", fill(end)]
    )


def say_plan(command: "RunStudy", chosen: Study, ask: Ask, plan: Plan, study_dir: Path) -> None:
    """Print what will run, and what that can show."""
    print(f"{chosen.name}: {chosen.summary}")
    print(_size(chosen, ask, plan, study_dir))
    if command.draw:
        return
    if plan.runs:
        print(f"expected to take {duration(plan.seconds)} at the speed that was measured before")
    print(printable(chosen.limits))
    print(f"in {study_dir}; the same command continues it, --draw only draws it", flush=True)


def _size(chosen: Study, ask: Ask, plan: Plan, study_dir: Path) -> str:
    """How large a study is, in a sentence."""
    cells = chosen.cells(ask, plan.steps, study_dir)
    if not plan.runs:
        return f"{counted(len(cells), 'measurement')}; nothing is trained, so the budget changes nothing"
    text = (
        f"{counted(plan.runs, 'run')}, mostly of {plan.steps:,} steps of {ask.recipe.batch} images; "
        f"{plan.exaflops:.3g} exaFLOPs of training"
    )
    choosing = {name for cell in cells for name in cell.follows()}
    if choosing:
        text += f"; {len(choosing):,} of the runs choose settings of the others, on held-out images"
    if len(cells) > plan.runs:
        text += f"; and {counted(len(cells) - plan.runs, 'measurement')}"
    return text


def write(command: "RunStudy", chosen: Study, reached: Results, study_dir: Path) -> int:
    """Print the table, and write it with the figure. The status is 1 if nothing was measured."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from vitkit.studies import write_figure

    for sentence in reached.failures():
        print(printable(sentence), file=sys.stderr)
    if not any(row.primary for row in reached.rows):
        print("nothing has been measured yet")
        return 1

    # The table
    table = chosen.table(reached)
    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, title=table.title)
    for number, column in enumerate(table.columns):
        justify = "right"
        if number == 0:
            justify = "left"
        shown.add_column(column, justify=justify, overflow="fold")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    Console().print(shown)
    notes = list(table.notes)
    grid = chosen.cells(reached.ask, reached.plan.steps, study_dir)
    ended = {row.cell for row in reached.rows if row.error is None}
    if len(ended) < len(grid):
        notes.append(f"{len(ended)} of {len(grid)} cells have ended so far")
    for question in command.predict:
        notes += chosen.predict(reached, question)
    for note in notes:
        print(printable(note))

    # The files
    notes += [_size(chosen, reached.ask, reached.plan, study_dir), chosen.limits]
    text = table._replace(notes=notes).markdown()
    with whole(study_dir / "table.md") as new:
        new.write_text(text, "utf-8")
    write_table(read_rows(study_dir), study_dir / RESULTS)
    write_figure(study_dir / "figure.png", chosen.draw(reached))
    print(f"wrote table.md, figure.png and results.parquet in {study_dir}")
    if reached.plan.runs:
        print(f"next: vitkit compare, or vitkit report, of runs below {as_word(study_dir)}")
    return 0
