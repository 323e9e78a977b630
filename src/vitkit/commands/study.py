"""`vitkit study`: one of the paper's studies on one's own images."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.commands import DATA, Defaults
from vitkit.commands.shard import read_shard
from vitkit.commands.study_output import description, listing, say_plan, write
from vitkit.studies import (
    RECORD,
    STUDIES,
    Ask,
    Plan,
    Results,
    Study,
    begin,
    most_shards,
    results,
    run_study,
)
from vitkit.system.console.text import counted
from vitkit.verbs import Device

HELP = ("-h", "--help", "--help-all")


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


def defaults(words: list[str]) -> Defaults:
    """The settings at their defaults. If help is asked for, what the named study is comes first."""
    asks_for_help = any(word in HELP for word in words)
    named = [word for word in words[:1] if word in STUDIES]
    if asks_for_help and named:
        print(description(STUDIES[named[0]]))
    return Defaults(RunStudy(), words=0)


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
    _check(command)
    read_shard(command.shard)  # nonsense is refused before anything runs
    chosen = STUDIES[command.study]
    study_dir = command.workdir or Path("runs") / _name(command)

    # What will run, said before anything does
    from vitkit.system.processes.ranks import on_rank_0, process_group

    if command.draw and not (study_dir / RECORD).exists():
        raise ValueError(f"no study has begun in {study_dir}, so there is nothing to draw")
    with process_group(command.device):
        ask, plan = begin(chosen, _ask(command), command.budget, study_dir, command.device)
        for question in command.predict:  # nonsense is refused before anything runs
            chosen.predict(Results(ask, plan, [], []), question)
        if on_rank_0():
            say_plan(command, chosen, ask, plan, study_dir)

        # Run it
        reached = _reached(command, chosen, ask, plan, study_dir)
        if reached is None or not on_rank_0():
            return 0
    return write(command, chosen, reached, study_dir)


def _reached(
    command: RunStudy, chosen: Study, ask: Ask, plan: Plan, study_dir: Path
) -> Results | None:
    """What the study has reached when it has run: here, in jobs of their own, or not at all. None for a
    shard that has no cells."""
    from vitkit.system.processes.ranks import on_rank_0

    if command.draw:
        return results(chosen, ask, plan, study_dir)
    most = most_shards(chosen.cells(ask, plan.steps, study_dir))
    several = f"the cells of this study are {counted(most, 'shard')} at most"
    if command.jobs:
        from vitkit.studies import run_jobs

        if command.jobs > most:
            print(f"{several}, so --jobs {command.jobs} starts no more")
        jobs = min(command.jobs, most)
        run_jobs(_words(command), jobs, command.on, command.job_options, study_dir)
        return results(chosen, ask, plan, study_dir)
    shard = read_shard(command.shard)
    if shard[0] >= most:
        if on_rank_0():
            print(f"shard {command.shard} has nothing to do: {several}")
        return None
    return run_study(chosen, ask, plan, study_dir, command.device, shard)


def _check(command: RunStudy) -> None:
    """Raises ValueError for settings that do not go together."""
    if command.predict and STUDIES[command.study].predict is None:
        raise ValueError(
            f"the study {command.study} fits no law; --predict is for data-size and compute"
        )
    if command.jobs < 0:
        raise ValueError(f"jobs is {command.jobs}; it is a number of processes, 0 to run it here")
    if command.jobs:
        from vitkit.studies import check_submitit

        check_submitit()
    if command.jobs and command.shard:
        raise ValueError("--jobs runs all shards, so it does not go with --shard; leave one out")
    if command.jobs and command.draw:
        raise ValueError("--draw runs nothing, so it does not go with --jobs; leave one out")
    if not command.jobs and (command.job_options or command.on != "local"):
        raise ValueError("--on and --job-options are about jobs; say how many, with --jobs")


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
        pretrain=command.pretrain,
        targets=command.targets,
        model=command.model,
        models=command.models,
        sizes=command.sizes,
        memory=command.memory,
        seeds=command.seeds,
        regularise=command.regularise,
    )


def _name(command: RunStudy) -> str:
    """What the directory is called: after the study and its images."""
    from vitkit.training import tidied

    images = Path(tidied(command.data)).name
    return re.sub(r"[^\w.-]+", "-", f"study-{command.study}-{images}").strip("-")


def _words(command: RunStudy) -> list[str]:
    """The words of the same command in one process, without a shard."""
    words = ["study", command.study]
    for name in ("data", "budget", "recipe", "fewshot", "model", "device"):
        value = getattr(command, name)
        if value:
            words += [f"--{name}", str(value)]
    for name in ("pretrain", "targets", "models", "sizes"):
        values = getattr(command, name)
        if values:
            words += [f"--{name}", *map(str, values)]
    if command.regularise:
        words.append("--regularise")
    study_dir = command.workdir or Path("runs") / _name(command)
    words += ["--seeds", str(command.seeds), "--memory", str(command.memory)]
    return [*words, "--workdir", str(study_dir)]
