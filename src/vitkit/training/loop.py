"""The training loop: one for every objective.

`train` prepares a run and `_steps` is its loop. Each act is in a file of its own: data.py (images),
choices.py and recipe.py (resolve), state/start.py, step.py (gradient, update), outcomes.py
(recovery), evaluation.py, state/state.py (checkpoints), schedule.py (when it ends) and state/finish.py.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from vitkit.data import Batch, train_batches
from vitkit.evaluation import label_notes
from vitkit.objectives import Supervised
from vitkit.recipes import Recipe, check_packages, resolve
from vitkit.recipes.settings import check_numbers, output_names
from vitkit.system import matmul
from vitkit.system.console.messages import say_on
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, Interrupted
from vitkit.system.machine import deterministic, slow
from vitkit.system.processes.ranks import from_rank_0, on_rank_0, process_group, world
from vitkit.system.processes.watchdog import watchdog
from vitkit.system.span import due
from vitkit.training.choices import as_decided, with_augmentation, with_channels, with_precision
from vitkit.training.data import RunData, about_classes, open_data, refuse_one_class
from vitkit.training.evaluation import ANSWERS, check_best, evaluate, gains_no_more, interval
from vitkit.training.outcomes import Outcomes, look
from vitkit.training.record.log import Log
from vitkit.training.record.machine import (
    BEGUN,
    about_compiling,
    about_tf32,
    compute_as_begun,
    record_beginning,
    work_of_images,
)
from vitkit.training.record.trackers import open_trackers, pictures_of_mistakes
from vitkit.training.record.values import flat, to_json
from vitkit.training.run import Run, locked, record_run
from vitkit.training.schedule import LAST_STEP, Ends, Schedule, stoppable
from vitkit.training.state.checkpoints import checkpoints, earlier_call
from vitkit.training.state.finish import finish, is_finished, keep_best
from vitkit.training.state.start import begin
from vitkit.training.state.state import State
from vitkit.training.step import advance, gradient, set_rates
from vitkit.weights import Classifier, load


def run_recipe(
    recipe: Recipe,
    run_dir: Path | str,
    device: str = "auto",
    console: Console | None = None,
    ends: Ends = LAST_STEP,
) -> Classifier:
    """Run a recipe in a directory, or continue the run that is there; returns the finished model,
    which is saved in `model/`.

    A run that is killed at any moment and called again ends with the weights of a run that was
    never disturbed: bit for bit on a CPU, and on a GPU if the recipe is `deterministic`. `ends` says
    what may end it before its last step.

    Raises VitkitError if the recipe cannot run, Interrupted after a signal of a scheduler or
    Ctrl-C, OSError if the disk is full, and FloatingPointError if the loss stays non-finite.
    """
    check_packages(recipe)  # before anything is read or written
    run_dir = Path(run_dir)
    with (
        process_group(device) as own_device,
        locked(run_dir),
        matmul.as_before(),
        deterministic(recipe.deterministic),
    ):
        if not on_rank_0():
            console = Console(quiet=True)
        return _train(recipe, run_dir, own_device, console, ends)


def _train(
    recipe: Recipe, run_dir: Path, device: torch.device, console: Console | None, ends: Ends
) -> Classifier:
    """A run, as every rank trains it."""
    say = say_on(console)

    # Open the images, and fill in what the recipe leaves open. The recipe that is saved is the one
    # that runs
    check_numbers(recipe)  # before the images, which may take long to check
    recipe = with_channels(recipe, say)
    recipe = as_decided(recipe, run_dir)
    data = open_data(recipe.data, recipe.evals, run_dir, say)
    asked_batch = recipe.batch
    recipe = resolve(recipe, data.facts)
    if recipe.batch < asked_batch:
        say(
            f"a batch of {asked_batch} is more than the {counted(data.facts.examples, 'training image')}, so "
            f"it is {recipe.batch}"
        )
    if recipe.batch > data.facts.examples:  # of a length in steps, which says how large they are
        say(
            f"each step of {recipe.batch} images has the {counted(data.facts.examples, 'training image')} "
            f"several times; `batch={data.facts.examples}` takes each once"
        )
    _refuse(recipe, data, run_dir)
    recipe = with_precision(recipe, run_dir, device, say)
    if (
        recipe.residual == "bfloat16" and recipe.precision == "float32"
    ):  # as "auto" is on this machine
        say("the residual stream is float32 too: bfloat16 goes with precision bfloat16")
        recipe = replace(recipe, residual="float32")
    recipe = with_augmentation(recipe, data, device, say)
    record_run(run_dir, recipe, data, say)

    if is_finished(run_dir, say):
        steps = f"{recipe.length.n:,} steps"
        if recipe.early_stop or ends.deadline is not None:
            steps += " or fewer"
        say(f"this run is finished after {steps}; another `workdir` starts a new one")
        return load(run_dir, quiet=True)

    # By which libraries it computes, those that it began with; and when it began, for its report
    continues = from_rank_0(lambda: bool(checkpoints(run_dir)))
    compute_as_begun(run_dir, device, recipe.arithmetic, continues, say)
    from_rank_0(lambda: record_beginning(run_dir, recipe))

    # Where the run begins: at its own checkpoint, with given weights, or from scratch
    state = begin(recipe, run_dir, data, device, say)

    # What is about to run, for the person who watches
    schedule = Schedule(run_dir, recipe.length.in_steps, ends.deadline, say)
    trackers = []
    if on_rank_0():
        trackers = open_trackers(
            recipe.track, run_dir, run_dir / BEGUN, state.step, flat(to_json(recipe))
        )
    work = work_of_images(run_dir, device, recipe.arithmetic)
    log = Log(run_dir, state.step, schedule.last, trackers, console, work)
    for sentence in _summary(recipe, data, state):
        log.say(sentence)
    for tracker in trackers:
        if tracker.sentence:
            log.say(tracker.sentence)

    # The steps, until the last one or until the run is asked to stop
    with stoppable(ends) as stop:
        try:
            _steps(Run(recipe, run_dir, data, state, schedule, log, stop))
            state.wait()
            if trackers:
                mistaken = pictures_of_mistakes(run_dir / ANSWERS, state.step, data.held_out)
                log.to_trackers(lambda tracker: tracker.pictures(state.step, mistaken))
        except Interrupted:
            if not stop.is_an_end():
                _save_interrupted(recipe, run_dir, state, log)
                raise
            state.wait()
            log.say(f"stopped at step {state.step:,}; what it has learned so far is kept")
        except FloatingPointError:  # every rank raises it, so all can wait for the last checkpoint
            state.wait()
            raise
        finally:
            log.close()
            watchdog.pause()

    return finish(recipe, run_dir, state, data.facts, say)


def _steps(run: Run) -> None:
    """The loop: from the state's step to the last one."""
    recipe, state, schedule, log = run.recipe, run.state, run.schedule, run.log

    # Save the beginning: a disk that has no room for a checkpoint says so now, not hours later
    if state.step == 0 and not from_rank_0(lambda: checkpoints(run.run_dir)):
        state.save(run.run_dir, recipe.keep)

    outcomes = Outcomes.on(state.device)
    evaluate(run)  # if the run was interrupted between a step and its evaluation
    keep_best(run)
    state.learner.train()
    is_done = False
    while not is_done:
        # This rank's share of every batch that follows the state's step. Which images a batch has
        # is a function of (seed, step) and of what data.json holds, so nothing of it needs to be
        # saved
        batches = train_batches(
            run.data.train,
            recipe.data.augmentation,
            recipe.data.preprocessing,
            recipe.batch,
            recipe.seed,
            state.step,
            run.workers,
            world(),
            state.device,
            run.data.readers,
        )
        with closing(batches):
            is_done = _steps_with(run, batches, outcomes)

    # A run that gains no more ends early: what was not due at that step is measured now
    if state.step < schedule.last:
        counted_steps = f"{state.step:,} of {schedule.last:,} steps"
        log.say(f"no gain in {recipe.early_stop} evaluations: the run ends after {counted_steps}")
        evaluate(run, is_last=True)
        keep_best(run)


def _steps_with(run: Run, batches: Iterator[Batch], outcomes: Outcomes) -> bool:
    """The steps with these batches, which follow the state's step. Returns False if the run went
    back to a step before that of the next batch, so that it needs others."""
    recipe, state, schedule, log = run.recipe, run.state, run.schedule, run.log
    while state.step < schedule.last and not gains_no_more(run):
        # The next batch
        with log.meter.waiting():
            batch = next(batches)
        if run.stop.is_due(outcomes.stops):
            look(run, outcomes, lag=0)
            raise Interrupted

        # Its rates and its gradient. What follows sees the step as finished, so one more
        position = schedule.position(state.step)
        rate = set_rates(recipe, state, position)
        state.learner.before(position, recipe.length.in_steps)
        try:
            outcome = gradient(recipe, state, batch, run.stop)
        except Interrupted:
            look(run, outcomes, lag=0)
            raise
        state.step += 1

        # The update, unless the step is not finite
        outcomes.add(state.step, batch, outcome)
        position = schedule.position(state.step)
        advance(recipe, state, outcome, position, at_once=not outcomes.lag)

        # Where it ends, if it must end in a time
        schedule.follow(state.step)
        log.total = schedule.last

        # What earlier steps gave, or all, if something is written down now
        finished_step = state.step
        lag = None
        if _writes(run):
            lag = 0
        if look(run, outcomes, lag) and state.step < finished_step:
            return False
        if due(state.step, recipe.log_every, schedule.last):
            log.training(state.step, recipe.batch, outcomes.loss, outcomes.norm, rate)
        log.at(state.step, recipe.batch, outcomes.loss)

        # Save, unless the step was skipped: its weights may be the cause, so a rollback must not
        # return to them. After the last step there is none
        is_good = state.bad_in_row == 0 or state.step == schedule.last
        if due(state.step, recipe.save_every.in_steps, schedule.last) and is_good:
            with log.meter.pausing():
                state.save(run.run_dir, recipe.keep)

        evaluate(run)
        keep_best(run)
    return True


def _writes(run: Run) -> bool:
    """Whether the run writes something of its state after this step, or shows it at once."""
    recipe = run.recipe
    if run.log.is_early(run.state.step):
        return True
    spans = [recipe.save_every, recipe.evaluate_every]
    spans += [interval(recipe, each) for each in recipe.evals]
    every = [recipe.log_every, *(span.in_steps for span in spans)]
    return any(due(run.state.step, steps, run.schedule.last) for steps in every)


def _refuse(recipe: Recipe, data: RunData, run_dir: Path) -> None:
    """Raises VitkitError if these images or processes cannot run a resolved recipe."""
    if recipe.model.classes:
        refuse_one_class(data.train, recipe.data)
    if not earlier_call(run_dir).trained:  # a run that goes on has measured it
        check_best(recipe, data)
    world_size = world().world_size
    if recipe.batch % world_size:
        next_multiple = -(-recipe.batch // world_size) * world_size
        raise BadSettings(
            f"a batch of {recipe.batch} cannot be shared equally by {world_size} processes; choose "
            f"`batch={next_multiple}`, or another number of processes"
        )


def _save_interrupted(recipe: Recipe, run_dir: Path, state: State, log: Log) -> None:
    """Save the state at which the run was asked to stop. If its last step was skipped it is not
    saved, and the run continues from the checkpoint before that step."""
    if state.bad_in_row == 0:
        state.save(run_dir, recipe.keep, scheduled=False)
    state.wait()
    saved = max(state.saved_step, 0)
    log.say(f"interrupted at step {state.step:,}, saved at {saved:,}; the same command continues")


def _summary(recipe: Recipe, data: RunData, state: State) -> list[str]:
    """Sentences that say what is about to run, in the numbers that people get wrong (effective
    batch, rate, length), and what will be missing."""
    # The model, and where it is
    parameters = sum(p.numel() for p in state.learner.parameters())
    model = f"{parameters:,} parameters on {state.device}"
    if recipe.init:
        model = f"from {recipe.init}: {model}"
    if world().world_size > 1:
        model += f" and {world().world_size - 1} more"

    # The images
    height, width = recipe.model.image
    images = [counted(len(data.train), "training image")]
    images += [f"{len(part):,} {name}" for name, part in data.held_out.items()]
    targets = f"{len(data.facts.labels):,} classes"
    if data.facts.target_kind == "number":
        targets = "a number each"
    elif data.facts.target_kind == "none":
        targets = "no labels"
    images += [targets, f"{height} x {width}"]

    # The steps
    optim = recipe.optim
    steps = f"{recipe.length} of {recipe.batch} ({optim.name}, lr {optim.lr:g}, {optim.schedule})"
    if state.step:
        steps += f"; continuing at step {state.step:,}"

    # What the person may not expect
    sentences = [f"{model}, {recipe.precision}; {', '.join(images)}; {steps}"]
    for about_the_machine in (about_tf32(state.device), about_compiling(state.device, recipe)):
        if about_the_machine:
            sentences.append(about_the_machine)
    if not data.held_out:
        sentences.append("nothing is held out to evaluate on")
    elif not recipe.evals:
        sentences.append("nothing measures this run: its images have no classes to judge by")
    if isinstance(recipe.objective, Supervised):
        sentences += about_classes(data.train, recipe.objective.class_weights)
    labels = output_names(recipe, data.facts)
    for name, source in data.others.items():
        sentences += [f"{name}: {note}" for note in label_notes(source.labels, labels)]
    if slow(state.device, recipe.arithmetic):
        sentences.append(
            "this CPU has no bfloat16 instructions: `precision='float32'` is many times faster here"
        )
    return sentences
