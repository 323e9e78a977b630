"""`vitkit study`: one of the paper's studies on one's own images."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.commands import DATA, Defaults
from vitkit.commands.arguments import Device
from vitkit.studies.paper import STUDIES
from vitkit.studies.study import Ask, Plan, Results, Study
from vitkit.system.text import as_word, printable

HELP = ("-h", "--help", "--help-all")
SHARD = re.compile(r"(\d+)/(\d+)")


@dataclass
class RunStudy:
    """Run one of the paper's studies on your own images: a grid of small runs, its table and its
    figure. The same command goes on with a study that was interrupted, and tries failed runs anew.
    Without NAME the studies are listed; NAME --help says what it measures, and what the paper
    found."""

    study: Annotated[Positional[str], arg(metavar="NAME", help="Which study.")] = ""
    data: Annotated[str, arg(metavar="DATA", help=f"The images. {DATA}")] = ""
    budget: str = ""
    """What all runs together may take, such as 30m, 2h or 0.5exaflops; or 500steps, of each run. The
    length of the runs follows, and is printed before anything starts. Default: the study's own."""
    seeds: int = 3
    """Runs of each kind, which differ by chance alone."""
    recipe: str = ""
    """Recipe of the run that is varied, by its name or file.py:function. Default: a small Vision
    Transformer that suits the size of the images."""
    fewshot: str = ""
    """Images on which 5-shot accuracy is measured, as in the paper, instead of accuracy on the test
    part of DATA."""
    targets: tuple[str, ...] = ()
    """Data sets to transfer to, for the study transfer."""
    model: str = ""
    """Published weights to begin with, for the study resolution."""
    models: tuple[str, ...] = ()
    """Names of models, for the study speed."""
    sizes: tuple[int, ...] = ()
    """Sides of images in pixels, for the studies speed and resolution."""
    memory: float = 0.25
    """GiB that a batch may take on a CPU, for the study speed; a GPU has its own."""
    predict: tuple[str, ...] = ()
    """What the fitted law is asked about: numbers of images (data-size), or exaFLOPs or names of
    models (compute)."""
    shard: str = "0/1"
    """Of several processes that share a study: the number of this one, from 0, and how many, such as
    1/4."""
    jobs: int = 0
    """Run the study in so many shards side by side, and wait for them (extra `cluster`)."""
    on: Literal["local", "slurm"] = "local"
    """Where --jobs run: as processes of this machine, or as jobs of SLURM."""
    job_options: tuple[str, ...] = ()
    """What SLURM is told about each job, such as timeout_min=240 gpus_per_node=1
    slurm_partition=gpu."""
    draw: bool = False
    """Run nothing: only make table and figure of what has run."""
    workdir: Path | None = None
    """Directory of the runs. Default: runs/study-NAME-DATA."""
    device: Device = "auto"


def defaults(words: list[str]) -> Defaults:
    """The settings at their defaults. If help is asked for, what the named study is comes first."""
    asks_for_help = any(word in HELP for word in words)
    named = [word for word in words[:1] if word in STUDIES]
    if asks_for_help and named:
        print(description(STUDIES[named[0]]))
    return Defaults(RunStudy(), words=0)


def description(study: Study) -> str:
    """What a study is, for people."""
    from vitkit.system.terminal import fill

    needs = " and ".join(f"--{name}" for name in study.needs)
    return "\n\n".join(
        [
            fill(f"{study.name}: {study.summary}"),
            fill(f"Measures: {study.measures}"),
            fill(f"The paper: {study.found}"),
            fill(f"A small budget: {study.limits}"),
            fill(f"It needs {needs}; without --budget it takes {study.budget}.") + "\n",
        ]
    )


def study(command: RunStudy) -> int:
    """Run a study, print its table, and write table and figure."""
    if not command.study:
        print(listing())
        return 0
    if command.study not in STUDIES:
        from difflib import get_close_matches

        near = get_close_matches(command.study, STUDIES, 1)
        question = ""
        if near:
            question = f"; did you mean {near[0]!r}?"
        raise ValueError(
            f"there is no study {command.study!r}{question} There are {', '.join(STUDIES)}"
        )
    shard = _shard(command.shard)
    chosen = STUDIES[command.study]
    study_dir = command.workdir or Path("runs") / _name(command)

    # What will run, said before anything does
    from vitkit.studies.study import RECORD, begin, results, run_study
    from vitkit.system.ranks import on_rank_0, process_group

    if command.draw and not (study_dir / RECORD).exists():
        raise ValueError(f"no study has begun in {study_dir}, so there is nothing to draw")
    with process_group(command.device):
        ask, plan = begin(chosen, _ask(command), command.budget, study_dir, command.device)
        if on_rank_0():
            _say_plan(command, chosen, ask, plan, study_dir)

        # Run it: not at all, in jobs of their own, or here
        if command.draw:
            reached = results(chosen, ask, plan, study_dir)
        elif command.jobs:
            from vitkit.studies.jobs import run_jobs

            run_jobs(_words(command), command.jobs, command.on, command.job_options, study_dir)
            reached = results(chosen, ask, plan, study_dir)
        else:
            reached = run_study(chosen, ask, plan, study_dir, command.device, shard)
        if not on_rank_0():
            return 0
    return _write(command, chosen, reached, study_dir)


def listing() -> str:
    """Every study, with half a line each."""
    from vitkit.system.terminal import fill, two_columns

    rows = [(name, each.summary) for name, each in STUDIES.items()]
    end = "vitkit study NAME --help says what it measures, what it costs and what the paper found."
    return "\n".join(
        ["usage: vitkit study NAME --data DATA", "", *two_columns(rows), "", fill(end)]
    )


def _ask(command: RunStudy) -> Ask:
    """What the words ask for. Raises ValueError for an unknown recipe."""
    from dataclasses import replace

    recipe = None
    if command.recipe:
        from vitkit.recipes import recipe as by_name

        recipe = by_name(command.recipe)
        recipe = replace(recipe, data=replace(recipe.data, source=command.data))
    return Ask(
        data=command.data,
        recipe=recipe,
        fewshot=command.fewshot,
        targets=command.targets,
        model=command.model,
        models=command.models,
        sizes=command.sizes,
        memory=command.memory,
        seeds=command.seeds,
    )


def _shard(text: str) -> tuple[int, int]:
    """(i, n) from "i/n". Raises ValueError for any other text."""
    match = SHARD.fullmatch(text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(
            f"--shard is {text!r}; write it like 0/4 to 3/4, the number of this process and how many "
            "there are"
        )
    return int(match[1]), int(match[2])


def _name(command: RunStudy) -> str:
    """What the directory is called: after the study and its images."""
    from vitkit.training.naming import tidied

    images = Path(tidied(command.data)).name
    return re.sub(r"[^\w.-]+", "-", f"study-{command.study}-{images}").strip("-")


def _words(command: RunStudy) -> list[str]:
    """The words of the same command in one process, without a shard."""
    words = ["study", command.study]
    for name in ("data", "budget", "recipe", "fewshot", "model", "device"):
        value = getattr(command, name)
        if value:
            words += [f"--{name}", str(value)]
    for name in ("targets", "models", "sizes"):
        values = getattr(command, name)
        if values:
            words += [f"--{name}", *map(str, values)]
    study_dir = command.workdir or Path("runs") / _name(command)
    words += ["--seeds", str(command.seeds), "--memory", str(command.memory)]
    return [*words, "--workdir", str(study_dir)]


def _say_plan(command: RunStudy, chosen: Study, ask: Ask, plan: Plan, study_dir: Path) -> None:
    """Print what will run, and what that can show."""
    from vitkit.studies.budget import duration

    grid = chosen.cells(ask, plan.steps, study_dir)
    print(f"{chosen.name}: {chosen.summary}")
    if plan.runs:
        batch = ask.recipe.batch
        print(
            f"{plan.runs} runs of {plan.steps:,} steps of {batch} images, {plan.exaflops:.3g} exaFLOPs; "
            f"expected to take {duration(plan.seconds)} at the speed that was measured before"
        )
    else:
        print(f"{len(grid)} measurements; nothing is trained, so the budget changes nothing")
    if len(grid) > plan.runs > 0:
        print(f"and {len(grid) - plan.runs} measurements of finished models")
    print(printable(chosen.limits))
    if not command.draw:
        print(f"in {study_dir}; the same command continues it, --draw only draws it")
    sys.stdout.flush()


def _write(command: RunStudy, chosen: Study, reached: Results, study_dir: Path) -> int:
    """Print the table, and write it with the figure. The status is 1 if nothing was measured."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from vitkit.studies.drawing import write_figure
    from vitkit.system.files import whole

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
        if chosen.predict is None:
            raise ValueError(
                f"the study {chosen.name} fits no law; --predict is for data-size and compute"
            )
        notes += chosen.predict(reached, question)
    for note in notes:
        print(printable(note))

    # The files
    text = table._replace(notes=notes).markdown()
    with whole(study_dir / "table.md") as new:
        new.write_text(text, "utf-8")
    write_figure(study_dir / "figure.png", chosen.draw(reached))
    print(f"wrote table.md, figure.png and results.parquet in {study_dir}")
    print(f"next: vitkit compare, or vitkit report, of runs below {as_word(study_dir)}")
    return 0
