"""One of the paper's studies on one's own images."""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.recipes import recipe as by_name
from vitkit.studies import (
    RECORD,
    RESULTS,
    STUDIES,
    Ask,
    Plan,
    Results,
    Study,
    begin,
    check_submitit,
    duration,
    most_shards,
    read_rows,
    results,
    run_jobs,
    run_study,
    write_figure,
    write_table,
)
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, fill, printable, two_columns
from vitkit.system.errors import BadSettings
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.storage.files import as_utf8, whole
from vitkit.training import tidied
from vitkit.verbs.arguments import Device, read_shard
from vitkit.verbs.definition import alone, as_html, result, verb
from vitkit.verbs.words import DATA


@dataclass(frozen=True)
class RunStudy:
    """Run one of the paper's studies on your own images: a grid of small runs, its table and its
    figure. The same command continues an interrupted study, and tries failed runs again. Without
    NAME, list the studies. NAME --help says what a study measures, and what the paper found."""

    study: Annotated[Positional[str], arg(metavar="NAME", help="Which study.")] = ""
    data: Annotated[str, arg(metavar="DATA", help=f"The images. {DATA}")] = ""
    budget: str = ""
    """Time or operations for all runs together, such as 30m, 2h or 0.5exaflops, or the length of
    each run, such as 500steps. vitkit prints the resulting length of the runs before anything
    starts. Default: the study's own."""
    seeds: int = 3
    """Runs of each setting, which differ only by chance."""
    recipe: str = ""
    """Recipe of the runs that the study varies: a name or file.py:function. Default: a small Vision
    Transformer that suits the size of the images."""
    fewshot: str = ""
    """Images on which 5-shot accuracy is measured, as in the paper, instead of accuracy on the test
    part of DATA."""
    regularise: bool = False
    """Choose weight decay, dropout and label smoothing on held-out images for each small part of DATA,
    for the study data-size."""
    pretrain: tuple[str, ...] = ()
    """More data sets to pre-train on, beside DATA, for the study transfer. Without any, it
    pre-trains on a tenth and on all of DATA."""
    targets: tuple[str, ...] = ()
    """Data sets to fine-tune on, for the studies transfer, data-size and compute. For the last two, the
    first takes the place of ImageNet."""
    model: str = ""
    """Published weights to begin with, for the studies resolution and transfer."""
    models: tuple[str, ...] = ()
    """Names of models, for the study speed."""
    sizes: tuple[int, ...] = ()
    """Sides of images in pixels, for the studies speed and resolution."""
    memory: float = 0.25
    """GiB that a batch may take on a CPU, for the study speed; on a GPU, the limit is the GPU's
    memory."""
    predict: tuple[str, ...] = ()
    """Predict the error from the fitted law, for these numbers of images (data-size), or for these
    exaFLOPs or names of models (compute)."""
    shard: str = ""
    """Which of several processes that share the study this one is: 1/4 to 4/4 for four."""
    jobs: int = 0
    """Run the study in this many shards side by side, and wait for them (extra `cluster`)."""
    on: Literal["local", "slurm"] = "local"
    """Where --jobs run: as processes of this machine, or as jobs of SLURM."""
    job_options: tuple[str, ...] = ()
    """Options of SLURM for each job, such as timeout_min=240 gpus_per_node=1
    slurm_partition=gpu."""
    draw: bool = False
    """Run nothing: only make the table and the figure from the finished runs."""
    workdir: Path | None = None
    """Directory of the runs. Default: runs/study-NAME-DATA."""
    device: Device = "auto"


@result
@dataclass(frozen=True, eq=False)
class StudyTable:
    """A study of the paper on your own images."""

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
        """Notes for the reader of the table."""
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


@result
@dataclass(frozen=True)
class Studies:
    """The list of the studies."""

    def rows(self) -> list[dict]:
        """A row for each."""
        return [{"study": name, "summary": each.summary} for name, each in STUDIES.items()]

    def shown(self) -> Iterator[str]:
        """The output: each study, with half a line."""
        yield listing()


@verb
@alone
def study(settings: RunStudy) -> StudyTable | Studies:
    """Run one of the paper's studies on your own images: a grid of small runs, its table and its
    figure. An interrupted study continues. Without a name, return the list of studies.

    Raises ValueError if the study does not exist, or if settings do not go together.
    """
    if not settings.study:
        return Studies()
    if settings.study not in STUDIES:
        near = get_close_matches(settings.study, STUDIES, 1)
        question = ""
        if near:
            question = f"did you mean {near[0]!r}? "
        raise BadSettings(
            f"there is no study {settings.study!r}; {question}there are {', '.join(STUDIES)}"
        )
    _check(settings)
    read_shard(settings.shard)  # nonsense is refused before anything runs
    chosen = STUDIES[settings.study]
    study_dir = settings.workdir or Path("runs") / _name(settings)

    # What will run, said before anything does
    if settings.draw and not (study_dir / RECORD).exists():
        raise BadSettings(f"no study has begun in {study_dir}, so there is nothing to draw")
    with process_group(settings.device):
        ask, plan = begin(chosen, _ask(settings), settings.budget, study_dir, settings.device)
        for question in settings.predict:  # nonsense is refused before anything runs
            chosen.predict(Results(ask, plan, [], []), question)
        say_plan(settings, chosen, ask, plan, study_dir)

        # Run it
        reached = _reached(settings, chosen, ask, plan, study_dir)
        outcome = StudyTable(settings, chosen, reached, study_dir)
        if reached is not None and on_rank_0():
            write(outcome)
    return outcome


def _reached(
    settings: RunStudy, chosen: Study, ask: Ask, plan: Plan, study_dir: Path
) -> Results | None:
    """What the study has reached when it has run: here, in jobs of their own, or not at all. None for a
    shard that has no cells."""
    if settings.draw:
        return results(chosen, ask, plan, study_dir)
    most = most_shards(chosen.cells(ask, plan.steps, study_dir))
    several = f"the cells of this study are {counted(most, 'shard')} at most"
    if settings.jobs:
        if settings.jobs > most:
            say(f"{several}, so `jobs={settings.jobs}` starts no more")
        jobs = min(settings.jobs, most)
        run_jobs(_words(settings), jobs, settings.on, settings.job_options, study_dir)
        return results(chosen, ask, plan, study_dir)
    shard = read_shard(settings.shard)
    if shard[0] >= most:
        say(f"shard {settings.shard} has nothing to do: {several}")
        return None
    return run_study(chosen, ask, plan, study_dir, settings.device, shard)


def _check(settings: RunStudy) -> None:
    """Raises ValueError if settings do not go together."""
    if settings.predict and STUDIES[settings.study].predict is None:
        raise BadSettings(
            f"the study {settings.study} fits no law; `predict` is for data-size and compute"
        )
    if settings.jobs < 0:
        raise BadSettings(f"jobs is {settings.jobs}; it is a number of processes, 0 to run it here")
    if settings.jobs:
        check_submitit()
    if settings.jobs and settings.shard:
        raise BadSettings("`jobs` runs all shards, so it does not go with `shard`; leave one out")
    if settings.jobs and settings.draw:
        raise BadSettings("`draw` runs nothing, so it does not go with `jobs`; leave one out")
    if not settings.jobs and (settings.job_options or settings.on != "local"):
        raise BadSettings("`on` and `job_options` are about jobs; say how many, with `jobs`")


def _ask(settings: RunStudy) -> Ask:
    """What the words ask for. Raises ValueError for an unknown recipe."""

    recipe = None
    if settings.recipe:
        recipe = by_name(settings.recipe)
        recipe = replace(recipe, data=replace(recipe.data, source=settings.data))
    return Ask(
        data=settings.data,
        recipe=recipe,
        fewshot=settings.fewshot,
        pretrain=settings.pretrain,
        targets=settings.targets,
        model=settings.model,
        models=settings.models,
        sizes=settings.sizes,
        memory=settings.memory,
        seeds=settings.seeds,
        regularise=settings.regularise,
    )


def _name(settings: RunStudy) -> str:
    """What the directory is called: after the study and its images."""
    images = Path(tidied(settings.data)).name
    return re.sub(r"[^\w.-]+", "-", f"study-{settings.study}-{images}").strip("-")


def _words(settings: RunStudy) -> list[str]:
    """The words of the same command in one process, without a shard."""
    words = ["study", settings.study]
    for name in ("data", "budget", "recipe", "fewshot", "model", "device"):
        value = getattr(settings, name)
        if value:
            words += [f"--{name}", str(value)]
    for name in ("pretrain", "targets", "models", "sizes"):
        values = getattr(settings, name)
        if values:
            words += [f"--{name}", *map(str, values)]
    if settings.regularise:
        words.append("--regularise")
    study_dir = settings.workdir or Path("runs") / _name(settings)
    words += ["--seeds", str(settings.seeds), "--memory", str(settings.memory)]
    return [*words, "--workdir", str(study_dir)]


def study_description(study: Study) -> str:
    """The description of a study, for people."""
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
    """Print the planned runs, and what they can show."""
    say(f"{chosen.name}: {chosen.summary}")
    say(_size(chosen, ask, plan, study_dir))
    if settings.draw:
        return
    if plan.runs:
        say(f"expected to take {duration(plan.seconds)} at the speed that was measured before")
    say(chosen.limits)
    say(f"in {study_dir}; the same command continues it, `draw` only draws it")


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
        new.write_bytes(as_utf8(outcome.study.table(reached)._replace(notes=notes).markdown()))
    write_table(read_rows(study_dir), study_dir / RESULTS)
    write_figure(outcome.path, outcome.study.draw(reached))
