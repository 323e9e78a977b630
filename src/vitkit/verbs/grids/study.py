"""One of the paper's studies on one's own images."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.recipes import recipe as by_name
from vitkit.studies import (
    RECORD,
    STUDIES,
    Ask,
    Plan,
    Results,
    Study,
    begin,
    check_submitit,
    most_shards,
    results,
    run_jobs,
    run_study,
)
from vitkit.system.console.saying import say
from vitkit.system.console.text import counted
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.training import tidied
from vitkit.verbs.arguments import Device, read_shard
from vitkit.verbs.definition import result, verb
from vitkit.verbs.grids.study_output import StudyTable, listing, say_plan, write
from vitkit.verbs.words import DATA


@dataclass(frozen=True)
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
    regularise: bool = False
    """Choose weight decay, dropout and label smoothing on held-out images for each small part of DATA,
    for the study data-size."""
    pretrain: tuple[str, ...] = ()
    """More data sets to pre-train on, beside DATA, for the study transfer; without any it pre-trains on
    a tenth and on all of DATA."""
    targets: tuple[str, ...] = ()
    """Data sets to transfer to, for the study transfer."""
    model: str = ""
    """Published weights to begin with, for the studies resolution and transfer."""
    models: tuple[str, ...] = ()
    """Names of models, for the study speed."""
    sizes: tuple[int, ...] = ()
    """Sides of images in pixels, for the studies speed and resolution."""
    memory: float = 0.25
    """GiB that a batch may take on a CPU, for the study speed; a GPU has its own."""
    predict: tuple[str, ...] = ()
    """What the fitted law is asked about: numbers of images (data-size), or exaFLOPs or names of
    models (compute)."""
    shard: str = ""
    """Of several processes that share a study: which one this is, 1/4 to 4/4 for four."""
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


@result
@dataclass(frozen=True)
class Studies:
    """The studies that there are."""

    def rows(self) -> list[dict]:
        """A row for each."""
        return [{"study": name, "summary": each.summary} for name, each in STUDIES.items()]

    def shown(self) -> Iterator[str]:
        """Each with half a line."""
        yield listing()


@verb
def study(settings: RunStudy) -> StudyTable | Studies:
    """Run one of the paper's studies on one's own images: a grid of small runs, its table and its
    figure. One that was interrupted goes on. Without a name, the studies that there are.

    Raises ValueError for a study that there is none of, and for settings that do not go together.
    """
    if not settings.study:
        return Studies()
    if settings.study not in STUDIES:
        near = get_close_matches(settings.study, STUDIES, 1)
        question = ""
        if near:
            question = f"; did you mean {near[0]!r}?"
        raise ValueError(
            f"there is no study {settings.study!r}{question} There are {', '.join(STUDIES)}"
        )
    _check(settings)
    read_shard(settings.shard)  # nonsense is refused before anything runs
    chosen = STUDIES[settings.study]
    study_dir = settings.workdir or Path("runs") / _name(settings)

    # What will run, said before anything does
    if settings.draw and not (study_dir / RECORD).exists():
        raise ValueError(f"no study has begun in {study_dir}, so there is nothing to draw")
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
            say(f"{several}, so --jobs {settings.jobs} starts no more")
        jobs = min(settings.jobs, most)
        run_jobs(_words(settings), jobs, settings.on, settings.job_options, study_dir)
        return results(chosen, ask, plan, study_dir)
    shard = read_shard(settings.shard)
    if shard[0] >= most:
        say(f"shard {settings.shard} has nothing to do: {several}")
        return None
    return run_study(chosen, ask, plan, study_dir, settings.device, shard)


def _check(settings: RunStudy) -> None:
    """Raises ValueError for settings that do not go together."""
    if settings.predict and STUDIES[settings.study].predict is None:
        raise ValueError(
            f"the study {settings.study} fits no law; --predict is for data-size and compute"
        )
    if settings.jobs < 0:
        raise ValueError(f"jobs is {settings.jobs}; it is a number of processes, 0 to run it here")
    if settings.jobs:
        check_submitit()
    if settings.jobs and settings.shard:
        raise ValueError("--jobs runs all shards, so it does not go with --shard; leave one out")
    if settings.jobs and settings.draw:
        raise ValueError("--draw runs nothing, so it does not go with --jobs; leave one out")
    if not settings.jobs and (settings.job_options or settings.on != "local"):
        raise ValueError("--on and --job-options are about jobs; say how many, with --jobs")


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
