"""What `study` shows and writes: the studies, what will run, table and figure."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from vitkit.studies import (
    RESULTS,
    STUDIES,
    Ask,
    Plan,
    Results,
    Study,
    duration,
    read_rows,
    write_figure,
    write_table,
)
from vitkit.system.console.saying import say
from vitkit.system.console.terminal import fill, two_columns
from vitkit.system.console.text import as_word, counted, printable
from vitkit.system.storage.files import whole
from vitkit.verbs.definition import as_html, result

if TYPE_CHECKING:
    from vitkit.verbs.grids.study import RunStudy


def study_description(study: Study) -> str:
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


def say_plan(settings: "RunStudy", chosen: Study, ask: Ask, plan: Plan, study_dir: Path) -> None:
    """Say what will run, and what that can show."""
    say(f"{chosen.name}: {chosen.summary}")
    say(_size(chosen, ask, plan, study_dir))
    if settings.draw:
        return
    if plan.runs:
        say(f"expected to take {duration(plan.seconds)} at the speed that was measured before")
    say(chosen.limits)
    say(f"in {study_dir}; the same command continues it, --draw only draws it")


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


@result
@dataclass(frozen=True, eq=False)
class StudyTable:
    """A study of the paper on one's own images."""

    settings: "RunStudy"
    study: Study
    results: Results | None
    """What every run reached; None for a process that had nothing to do."""
    study_dir: Path
    """Its directory: table.md, figure.png, results.parquet, and the runs."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been measured yet."""
        return self.results is None or not any(row.primary for row in self.results.rows)

    @property
    def status(self) -> int:
        """The exit status of the command: 1 if it has measured nothing."""
        return int(self.results is not None and self.is_empty)

    @property
    def path(self) -> Path:
        """The figure."""
        return self.study_dir / "figure.png"

    def rows(self) -> list[dict]:
        """A row for each of the table's, with its columns."""
        if self.is_empty:
            return []
        table = self.study.table(self.results)
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        notes = list(self.study.table(self.results).notes)
        cells = self.study.cells(self.results.ask, self.results.plan.steps, self.study_dir)
        ended = {row.cell for row in self.results.rows if row.error is None}
        if len(ended) < len(cells):
            notes.append(f"{len(ended)} of {len(cells)} cells have ended so far")
        for question in self.settings.predict:
            notes += self.study.predict(self.results, question)
        return notes

    def shown(self) -> Iterator[str | Table]:
        """The table, its notes, and what was written."""
        if self.results is None:
            return
        if self.is_empty:
            yield "nothing has been measured yet"
            return
        table = self.study.table(self.results)
        shown = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, title=table.title)
        for number, column in enumerate(table.columns):
            justify = "right"
            if number == 0:
                justify = "left"
            shown.add_column(column, justify=justify, overflow="fold")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        yield shown
        for note in self.notes():
            yield printable(note)
        yield f"wrote table.md, figure.png and results.parquet in {self.study_dir}"
        if self.results.plan.runs:
            word = as_word(self.study_dir)
            yield f"next: vitkit compare, or vitkit report, of runs below {word}"

    def _repr_html_(self) -> str:
        """The table, and its figure."""
        html = as_html(self)
        if not self.path.exists():
            return html
        figure = base64.b64encode(self.path.read_bytes()).decode()
        return f'{html}<img src="data:image/png;base64,{figure}" alt="{self.study.name}">'


def write(outcome: StudyTable) -> None:
    """Write the table and the figure; say what failed."""
    reached = outcome.results
    study_dir = outcome.study_dir
    for sentence in reached.failures():
        say(printable(sentence))
    if outcome.is_empty:
        return
    size = _size(outcome.study, reached.ask, reached.plan, study_dir)
    notes = [*outcome.notes(), size, outcome.study.limits]
    with whole(study_dir / "table.md") as new:
        new.write_text(outcome.study.table(reached)._replace(notes=notes).markdown(), "utf-8")
    write_table(read_rows(study_dir), study_dir / RESULTS)
    write_figure(outcome.path, outcome.study.draw(reached))
