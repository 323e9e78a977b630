"""The loop: one, whatever the objective."""

import time
from contextlib import closing
from pathlib import Path

import torch
from rich.console import Console

from vitkit.data import default_workers, train_batches
from vitkit.system.errors import Interrupted
from vitkit.system.machine import slow
from vitkit.system.ranks import from_rank_0, on_rank_0, process_group, world
from vitkit.system.span import due
from vitkit.system.watchdog import watchdog
from vitkit.train.begin import begin
from vitkit.train.checkpoints import checkpoints
from vitkit.train.data import RunData, open_data
from vitkit.train.evaluation import evaluate
from vitkit.train.finish import finish, is_finished
from vitkit.train.log import Log
from vitkit.train.recipe import Facts, Recipe, resolve
from vitkit.train.recover import skip
from vitkit.train.run import Run, locked, record_run
from vitkit.train.state import State
from vitkit.train.step import gradient, set_rates, update
from vitkit.train.stop import stoppable
from vitkit.weights import Classifier, load


def train(
    recipe: Recipe, run_dir: Path | str, device: str = "auto", console: Console | None = None
) -> Classifier:
    """Run a recipe in a directory, or continue the run that is there; returns the finished model,
    saved in `model/`.

    Killed at any moment and called again, it ends with the weights of a run that was never
    disturbed: bit for bit on a CPU. Raises ValueError for what cannot run, Interrupted after
    SIGTERM or Ctrl-C, OSError when the disk is full, FloatingPointError when the loss stays
    non-finite.
    """
    run_dir = Path(run_dir)
    with process_group(device) as own_device, locked(run_dir):
        if not on_rank_0():
            console = Console(quiet=True)
        return _train(recipe, run_dir, own_device, console or Console())


def _train(recipe: Recipe, run_dir: Path, device: torch.device, console: Console) -> Classifier:
    """One rank's part of it."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    # What runs, and on what
    data = open_data(recipe.data, recipe.evals, run_dir, say)
    recipe = resolve(recipe, data.facts)
    _check_share(recipe)
    record_run(run_dir, recipe, data)

    # Where it begins
    state = begin(recipe, run_dir, data, device, say)
    if is_finished(recipe, run_dir, state):
        say(f"this run is finished after {state.step:,} steps; another --workdir starts a new one")
        return load(run_dir, quiet=True)

    # Its steps, until the last one or until it is asked to stop
    log = Log(run_dir, state.step, recipe.length.n, recipe.tensorboard, console)
    for sentence in _opening(recipe, data, state):
        log.say(sentence)
    with stoppable() as stop:
        try:
            _steps(Run(recipe, run_dir, data, state, log, stop))
            state.wait()
        except Interrupted:
            _save_interrupted(recipe, run_dir, state, log)
            raise
        except FloatingPointError:  # on every rank
            state.wait()
            raise
        finally:
            log.close()
            watchdog.pause()

    # What it leaves
    return finish(recipe, run_dir, state, data.facts)


def _steps(run: Run) -> None:
    """From the state's step to the last one, with evaluations and checkpoints on the way."""
    recipe, state, log = run.recipe, run.state, run.log
    total = recipe.length.n
    if state.step == 0 and not from_rank_0(lambda: checkpoints(run.run_dir)):
        state.save(run.run_dir, recipe.keep)  # a disk without room for one says so before the first
    with closing(_batches(run)) as batches:
        while True:
            evaluate(run)
            if state.step == total:
                return

            # The next batch
            began = time.perf_counter()
            batch = next(batches)
            log.meter.waited += time.perf_counter() - began
            run.stop.raise_if_asked()

            # Its gradient, and the update, if both are finite
            rate = set_rates(recipe, state)
            state.learner.before(state.step, total)
            loss, norm = gradient(recipe, state, batch)
            state.step += 1
            if torch.isfinite(loss + norm):
                update(recipe, state)
            else:
                skip(run, batch, loss, norm)
            state.optimizer.zero_grad()

            # What is written down
            log.at(state.step)
            if due(state.step, recipe.log_every, total):
                log.training(state.step, recipe.batch, loss.item(), norm.item(), rate)
            if due(state.step, recipe.save_every.n, total) and state.bad_in_row == 0:
                began = time.perf_counter()
                state.save(run.run_dir, recipe.keep)
                log.meter.paused += time.perf_counter() - began


def _batches(run: Run):
    """This rank's share of the batches that follow the state's step; their order is a function of
    (seed, step)."""
    data = run.recipe.data
    workers = data.workers
    if workers < 0:
        workers = default_workers(run.data.train)
    return train_batches(
        run.data.train,
        data.augmentation,
        data.preprocessing,
        run.recipe.batch,
        run.recipe.seed,
        run.state.step,
        workers,
        world(),
        run.state.device,
    )


def _check_share(recipe: Recipe) -> None:
    """Raises ValueError for a batch that the ranks cannot share."""
    world_size = world().world_size
    if recipe.batch % world_size:
        next_batch = -(-recipe.batch // world_size) * world_size
        raise ValueError(
            f"a batch of {recipe.batch} cannot be shared equally by {world_size} processes; choose "
            "--batch "
            f"{next_batch}, or another number of them"
        )


def _save_interrupted(recipe: Recipe, run_dir: Path, state: State, log: Log) -> None:
    """Save where the run was asked to stop; unless its last step was bad, for then it continues
    before that."""
    if state.bad_in_row == 0:
        state.save(run_dir, recipe.keep, scheduled=False)
    state.wait()
    saved = max(state.saved_step, 0)
    log.say(f"interrupted at step {state.step:,}, saved at {saved:,}; the same command continues")


def _opening(recipe: Recipe, data: RunData, state: State) -> list[str]:
    """What is about to run, in the numbers that people get wrong (effective batch, rate, length),
    and what will be missing."""
    parameters = sum(p.numel() for p in state.learner.parameters())
    start = f"{parameters:,} parameters on {state.device}"
    if recipe.init:
        start = f"from {recipe.init}: {start}"
    if world().world_size > 1:
        start += f" and {world().world_size - 1} more"

    images = [f"{len(data.train):,} training images"]
    images += [f"{len(part):,} {name}" for name, part in data.held_out.items()]
    height, width = recipe.model.image
    images += [_targets(data.facts), f"{height} x {width}"]

    optim = recipe.optim
    steps = f"{recipe.length} of {recipe.batch} ({optim.name}, lr {optim.lr:g}, {optim.schedule})"
    if state.step:
        steps += f"; continuing at step {state.step:,}"

    sentences = [f"{start}, {recipe.precision}; {', '.join(images)}; {steps}"]
    if not data.held_out:
        sentences.append("nothing is held out to evaluate on")
    elif not recipe.evals:
        sentences.append("nothing measures this run: its images have no classes to judge by")
    if slow(state.device, recipe.precision):
        sentences.append(
            "this CPU has no bfloat16 instructions: --precision float32 is many times faster here"
        )
    return sentences


def _targets(facts: Facts) -> str:
    """What the images are labelled with, in two words."""
    if facts.target == "number":
        return "a number each"
    if facts.target == "none":
        return "no labels"
    return f"{len(facts.labels):,} classes"
