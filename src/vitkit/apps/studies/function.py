"""`vitkit study`: one of the paper's studies on the user's images."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Unpack

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from vitkit.apps.studies.budget import BudgetPlan, duration
from vitkit.apps.studies.jobs import check_submitit, run_jobs
from vitkit.apps.studies.paper import STUDIES
from vitkit.apps.studies.protocol import RECORD, Ask, Results, Study, begin, results, run_study
from vitkit.inspection import write_figure
from vitkit.recipes import recipe as by_name
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, fill, printable, two_columns
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import read_shard
from vitkit.system.functions.public import alone, public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import step
from vitkit.system.functions.types import DataLike, DeviceLike, Messages, PathLike, Several
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.storage.files import as_utf8, whole
from vitkit.training import most_shards, read_rows, tidied
from vitkit.training.grids.rows import RESULTS, write_table


@dataclass(frozen=True, eq=False, repr=False)
class StudyTable(Rows):
    """A study of the paper on your own images."""

    study: Study
    results: Results | None
    """The results of all runs; None for a process that had nothing to do."""
    study_dir: Path
    """Directory of the study: table.md, figure.png, results.parquet, and the runs."""
    predict: tuple[str, ...] = ()
    """Questions about the fitted law: numbers of images or exaFLOPs, or names of models."""

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
        """The rows of the table, by its columns."""
        if self.results is None or self.is_empty:
            return []
        table = self.study.table(self.results)
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def notes(self) -> list[str]:
        """Notes for the reader of the table."""
        assert self.results is not None  # without results there is no table
        notes = list(self.study.table(self.results).notes)
        cells = self.study.cells(self.results.ask, self.results.plan.steps, self.study_dir)
        ended = {row.cell for row in self.results.rows if row.error is None}
        if len(ended) < len(cells):
            notes.append(f"{len(ended)} of {len(cells)} cells have ended so far")
        for question in self.predict:
            assert self.study.predict is not None  # `study` requires it
            notes += self.study.predict(self.results, question)
        return notes

    def shown(self) -> Iterator[str | Table]:
        """The table, its notes, and the written files."""
        if self.results is None:
            return
        if self.is_empty:
            yield "nothing has been measured yet"
            return
        table = self.study.table(self.results)
        shown = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, title=table.title)
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        yield shown
        for note in self.notes():
            yield printable(note)
        yield f"wrote table.md, figure.png and results.parquet in {self.study_dir}"
        if self.results.plan.runs:
            word = as_word(self.study_dir)
            yield f"next: {step('compare')}, or {step('report')}, of runs below {word}"

    def _repr_html_(self) -> str:
        """The table, and its figure."""
        html = super()._repr_html_()
        if not self.path.exists():
            return html
        figure = base64.b64encode(self.path.read_bytes()).decode()
        return f'{html}<img src="data:image/png;base64,{figure}" alt="{self.study.name}">'


@dataclass(frozen=True, repr=False)
class Studies(Rows):
    """The list of the studies."""

    def rows(self) -> list[dict]:
        """One row per study."""
        return [{"study": name, "summary": each.summary} for name, each in STUDIES.items()]

    def shown(self) -> Iterator[str]:
        """One line per study, with its summary."""
        yield listing()


@dataclass(frozen=True)
class StudyPlace:
    """A study's directory, device and execution: shards or jobs."""

    name: str
    study_dir: Path
    device: str
    shard: tuple[int, int]
    """Index of this process, from 0, and the number of processes."""
    jobs: int
    """Number of jobs that run the study; 0 to run it here."""
    on: Literal["local", "slurm"]
    job_options: tuple[str, ...]
    draw: bool
    """Whether only the table and figure are made, without any run."""


@public
@alone
def study(
    name: str = "",
    *,
    data: DataLike = "",
    budget: str = "",
    seeds: int = 3,
    recipe: str = "",
    fewshot: DataLike = "",
    regularise: bool = False,
    pretrain: Several[DataLike] = (),
    targets: Several[DataLike] = (),
    model: str = "",
    models: Several[str] = (),
    sizes: Several[int] = (),
    memory: float = 0.25,
    predict: Several[str] = (),
    shard: str = "",
    jobs: int = 0,
    on: Literal["local", "slurm"] = "local",
    job_options: Several[str] = (),
    draw: bool = False,
    workdir: PathLike | None = None,
    device: DeviceLike = "auto",
    **messages: Unpack[Messages],
) -> StudyTable | Studies:
    """Run one of the paper's studies on your own images: a grid of small runs, its table and its
    figure. The same command continues an interrupted study, and tries failed runs again. Without
    NAME, list the studies. NAME --help says what a study measures, and what the paper found.

    Args:
        name: Which study.
        data: The images: a folder, a manifest, parquet files, tar shards, an address (https://, s3://,
            gs://), hf:NAME on the Hugging Face hub, file.py:function, or digits.
        budget: Time or operations for all runs together, such as 30m, 2h or 0.5exaflops, or the length of
            each run, such as 500steps. vitkit prints the resulting length of the runs before anything
            starts. Default: the study's own.
        seeds: Runs of each setting, which differ only by chance.
        recipe: Recipe of the runs that the study varies: a name or file.py:function. Default: a small
            Vision Transformer that suits the size of the images.
        fewshot: Images on which 5-shot accuracy is measured, as in the paper, instead of accuracy on the
            test part of DATA.
        regularise: Choose weight decay, dropout and label smoothing on held-out images for each small
            part of DATA, for the study data-size.
        pretrain: More data sets to pre-train on, beside DATA, for the study transfer. Without any, it
            pre-trains on a tenth and on all of DATA.
        targets: Data sets to fine-tune on, for the studies transfer, data-size and compute. For the last
            two, the first takes the place of ImageNet.
        model: Published weights to begin with, for the studies resolution and transfer.
        models: Names of models, for the study speed.
        sizes: Sides of images in pixels, for the studies speed and resolution.
        memory: GiB that a batch may take on a CPU, for the study speed; on a GPU, the limit is the GPU's
            memory.
        predict: Predict the error from the fitted law, for these numbers of images (data-size), or for
            these exaFLOPs or names of models (compute).
        shard: Which of several processes that share the study this one is: 1/4 to 4/4 for four.
        jobs: Run the study in this many shards side by side, and wait for them (pip install 'vitkit[cluster]').
        on: Where `jobs` run: as processes of this machine, or as jobs of SLURM.
        job_options: Options of SLURM for each job, such as timeout_min=240 gpus_per_node=1
            slurm_partition=gpu.
        draw: Run nothing: only make the table and the figure from the finished runs.
        workdir: Directory of the runs. Default: runs/study-NAME-DATA.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.

    Raises:
        BadSettings: If the study does not exist, or if settings do not go together.
        BadData: If the images cannot be read.
    """
    # Checks before anything runs
    if not name:
        return Studies()
    if name not in STUDIES:
        near = get_close_matches(name, STUDIES, 1)
        question = ""
        if near:
            question = f"did you mean {near[0]!r}? "
        raise BadSettings(f"there is no study {name!r}; {question}there are {', '.join(STUDIES)}")
    chosen = STUDIES[name]
    if predict and chosen.predict is None:
        raise BadSettings(f"the study {name} fits no law; `predict` is for data-size and compute")
    study_dir = workdir or Path("runs") / _directory_name(name, data)
    place = StudyPlace(name, study_dir, device, read_shard(shard), jobs, on, job_options, draw)
    _check(place, bool(shard))

    # The settings
    own = None
    if recipe:
        own = by_name(recipe)
        own = replace(own, data=replace(own.data, source=data))
    asked = Ask(
        data=data,
        recipe=own,
        fewshot=fewshot,
        pretrain=pretrain,
        targets=targets,
        model=model,
        models=models,
        sizes=sizes,
        memory=memory,
        seeds=seeds,
        regularise=regularise,
    )
    if draw and not (study_dir / RECORD).exists():
        raise BadSettings(f"no study has begun in {study_dir}, so there is nothing to draw")
    with process_group(device):
        ask, plan = begin(chosen, asked, budget, study_dir, device)
        for question in predict:
            assert chosen.predict is not None  # _check requires it
            chosen.predict(Results(ask, plan, [], []), question)
        say_plan(place, chosen, ask, plan)

        # Run the study
        reached = _reached(place, chosen, ask, plan, _words(place, asked, budget, recipe))
        outcome = StudyTable(chosen, reached, study_dir, predict)
        if reached is not None and on_rank_0():
            write(outcome)
    return outcome


def _reached(
    place: StudyPlace, chosen: Study, ask: Ask, plan: BudgetPlan, words: list[str]
) -> Results | None:
    """The results after running the study here, in jobs, or not at all. None for a shard without cells.
    words: the command of a job, without its shard."""
    if place.draw:
        return results(chosen, ask, plan, place.study_dir)
    most = most_shards(chosen.cells(ask, plan.steps, place.study_dir))
    several = f"the cells of this study are {counted(most, 'shard')} at most"
    if place.jobs:
        if place.jobs > most:
            say(f"{several}, so `jobs={place.jobs}` starts no more")
        run_jobs(words, min(place.jobs, most), place.on, place.job_options, place.study_dir)
        return results(chosen, ask, plan, place.study_dir)
    number, processes = place.shard
    if number >= most:
        say(f"shard {number + 1}/{processes} has nothing to do: {several}")
        return None
    return run_study(chosen, ask, plan, place.study_dir, place.device, place.shard)


def _check(place: StudyPlace, has_shard: bool) -> None:
    """Raises BadSettings if settings contradict each other."""
    if place.jobs < 0:
        raise BadSettings(f"`jobs` is {place.jobs}; it is a number of processes, 0 to run it here")
    if place.jobs:
        check_submitit()
    if place.jobs and has_shard:
        raise BadSettings("`jobs` runs all shards, so it does not go with `shard`; leave one out")
    if place.jobs and place.draw:
        raise BadSettings("`draw` runs nothing, so it does not go with `jobs`; leave one out")
    if not place.jobs and (place.job_options or place.on != "local"):
        raise BadSettings("`on` and `job_options` are about jobs; say how many, with `jobs`")


def _directory_name(name: str, data: str) -> str:
    """The name of the study's directory, from the study and its images."""
    images = Path(tidied(data)).name
    return re.sub(r"[^\w.-]+", "-", f"study-{name}-{images}").strip("-")


def _words(place: StudyPlace, asked: Ask, budget: str, recipe: str) -> list[str]:
    """The words of the command that one job runs, without its shard."""
    words = ["study", place.name]
    single = {
        "data": asked.data,
        "budget": budget,
        "recipe": recipe,
        "fewshot": asked.fewshot,
        "model": asked.model,
        "device": place.device,
    }
    for option, value in single.items():
        if value:
            words += [f"--{option}", str(value)]
    for option in ("pretrain", "targets", "models", "sizes"):
        values = getattr(asked, option)
        if values:
            words += [f"--{option}", *map(str, values)]
    if asked.regularise:
        words.append("--regularise")
    words += ["--seeds", str(asked.seeds), "--memory", str(asked.memory)]
    return [*words, "--workdir", str(place.study_dir)]


def study_description(study: Study) -> str:
    """The description of a study for its help."""
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
    """All studies with their summaries."""
    rows = [(name, each.summary) for name, each in STUDIES.items()]
    end = "vitkit study NAME --help says what it measures, what it costs and what the paper found."
    return "\n".join(
        ["usage: vitkit study NAME --data DATA", "", *two_columns(rows), "", fill(end)]
    )


def say_plan(place: StudyPlace, chosen: Study, ask: Ask, plan: BudgetPlan) -> None:
    """Log the planned runs, and what they can show."""
    say(f"{chosen.name}: {chosen.summary}")
    say(_size(chosen, ask, plan, place.study_dir))
    if place.draw:
        return
    if plan.runs:
        say(f"expected to take {duration(plan.seconds)} at the speed that was measured before")
    say(chosen.limits)
    say(f"in {place.study_dir}; the same command continues it, `draw` only draws it")


def _size(chosen: Study, ask: Ask, plan: BudgetPlan, study_dir: Path) -> str:
    """A sentence about the size of a study."""
    cells = chosen.cells(ask, plan.steps, study_dir)
    if not plan.runs:
        return f"{counted(len(cells), 'measurement')}; nothing is trained, so the budget changes nothing"
    text = (
        f"{counted(plan.runs, 'run')}, mostly of {plan.steps:,} steps of {ask.varied.batch} images; "
        f"{plan.exaflops:.3g} exaFLOPs of training"
    )
    choosing = {name for cell in cells for name in cell.follows()}
    if choosing:
        text += f"; {len(choosing):,} of the runs choose settings of the others, on held-out images"
    if len(cells) > plan.runs:
        text += f"; and {counted(len(cells) - plan.runs, 'measurement')}"
    return text


def write(outcome: StudyTable) -> None:
    """Write the table and the figure; log failed runs."""
    reached = outcome.results
    study_dir = outcome.study_dir
    assert reached is not None  # without results there is nothing to write
    for sentence in reached.failures():
        say(printable(sentence))
    if outcome.is_empty:
        return
    size = _size(outcome.study, reached.ask, reached.plan, study_dir)
    notes = [*outcome.notes(), size, outcome.study.limits]
    with whole(study_dir / "table.md") as new:
        new.write_bytes(as_utf8(outcome.study.table(reached)._replace(notes=notes).markdown()))
    write_table(read_rows(study_dir), study_dir / RESULTS)
    write_figure(outcome.study.draw(reached), outcome.path)
