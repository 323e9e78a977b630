"""The training loop: one for every objective.

`run_recipe` prepares a run and `_steps` is its loop. Each part has its own file: data.py (images), choices.py
(choices before the first step), state/start.py (initial state), step.py (gradient, update), outcomes.py
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
from vitkit.recipes import Recipe, check_numbers, check_packages, resolve
from vitkit.recipes.settings import output_names
from vitkit.system import matmul
from vitkit.system.console.messages import say_on
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, Interrupted
from vitkit.system.machine import deterministic, slow
from vitkit.system.processes.ranks import from_rank_0, on_rank_0, process_group, world
from vitkit.system.processes.watchdog import watchdog
from vitkit.system.span import due
from vitkit.training.choices import (
    about_mirroring,
    with_augmentation,
    with_channels,
    with_precision,
    with_recorded_augmentation,
)
from vitkit.training.data import RunData, about_classes, open_data, refuse_one_class
from vitkit.training.evaluation import ANSWERS, check_best, evaluate, gains_no_more, interval
from vitkit.training.outcomes import Outcomes, look
from vitkit.training.record.log import Log
from vitkit.training.record.machine import (
    BEGUN,
    about_compiling,
    about_tf32,
    record_beginning,
    recorded_work,
    restore_numerics,
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
    """Run a recipe in a directory, or continue the run in it; returns the finished model, which is saved
    in `model/`.

    A run that is killed at any moment and called again ends with the weights of an uninterrupted run: bit
    for bit on a CPU, and on a GPU if the recipe is `deterministic`. `ends` is what may end it before its
    last step.

    Raises VitkitError if the recipe cannot run, Interrupted after a signal of a scheduler or
    Ctrl-C, OSError if the disk is full, and FloatingPointError if the loss stays non-finite.
    """
    check_packages(recipe)  # fails before anything is read or written
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
    """Train, on every rank."""
    say = say_on(console)

    # Open the images, and fill in what the recipe leaves open. The recipe that is saved is the one
    # that runs
    check_numbers(recipe)  # comes before the images, whose check may take long
    recipe = with_channels(recipe, say)
    recipe = with_recorded_augmentation(recipe, run_dir)
    data = open_data(recipe.data, recipe.evals, run_dir, say)
    requested_batch = recipe.batch
    recipe = resolve(recipe, data.facts)
    if recipe.batch < requested_batch:
        say(
            f"a batch of {requested_batch} is more than the {counted(data.facts.examples, 'training image')}, so "
            f"it is {recipe.batch}"
        )
    if recipe.batch > data.facts.examples:  # `resolve` keeps the batch if the length is in steps
        say(
            f"each step of {recipe.batch} images has the {counted(data.facts.examples, 'training image')} "
            f"several times; `batch={data.facts.examples}` takes each once"
        )
    _refuse(recipe, data, run_dir)
    recipe = with_precision(recipe, run_dir, device, say)
    # "auto" may have become float32 on this machine
    if recipe.residual == "bfloat16" and recipe.precision == "float32":
        say("the residual stream is float32 too: bfloat16 needs the precision bfloat16")
        recipe = replace(recipe, residual="float32")
    recipe = with_augmentation(recipe, data, device, say)
    for sentence in about_mirroring(recipe, data.facts.labels):
        say(sentence)
    record_run(run_dir, recipe, data, say)

    if is_finished(run_dir, say):
        steps = f"{recipe.length.n:,} steps"
        if recipe.early_stop or ends.deadline is not None:
            steps += " or fewer"
        say(f"this run is finished after {steps}; another `workdir` starts a new one")
        return load(run_dir, quiet=True)

    # Compute with the numerical settings that the run began with; and record its start, for its report
    continues = from_rank_0(lambda: bool(checkpoints(run_dir)))
    restore_numerics(run_dir, device, recipe.arithmetic, continues, say)
    from_rank_0(lambda: record_beginning(run_dir, recipe))

    # The initial state: from the run's checkpoint, from given weights, or from scratch
    state = begin(recipe, run_dir, data, device, say)

    # Open the log, and print a summary of the run
    schedule = Schedule(run_dir, recipe.length.in_steps, ends.deadline, say)
    trackers = []
    if on_rank_0():
        trackers = open_trackers(
            recipe.track, run_dir, run_dir / BEGUN, state.step, flat(to_json(recipe))
        )
    work = recorded_work(run_dir, device, recipe.arithmetic)
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
        except FloatingPointError:  # raised on every rank, so all can wait for the last checkpoint
            state.wait()
            raise
        finally:
            log.close()
            watchdog.pause()

    return finish(recipe, run_dir, state, data.facts, say)


def _steps(run: Run) -> None:
    """The loop: from the state's step to the last one."""
    recipe, state, schedule, log = run.recipe, run.state, run.schedule, run.log

    # Save a first checkpoint, so that a full disk is noticed now, not hours later
    if state.step == 0 and not from_rank_0(lambda: checkpoints(run.run_dir)):
        state.save(run.run_dir, recipe.keep)

    outcomes = Outcomes.on(state.device)
    evaluate(run)  # makes up for an evaluation that an interruption prevented
    keep_best(run)
    state.learner.train()
    is_done = False
    while not is_done:
        # This rank's share of every batch after the state's step. The images of a batch are a function of
        # (seed, step) and of data.json, so no state of the loader needs to be saved
        batches = train_batches(
            run.data.train,
            recipe.data.augmentation,
            recipe.training_preprocessing,
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

    # A run that ends early runs the evaluators that were not due at its last step
    if state.step < schedule.last:
        counted_steps = f"{state.step:,} of {schedule.last:,} steps"
        log.say(f"no gain in {recipe.early_stop} evaluations: the run ends after {counted_steps}")
        evaluate(run, is_last=True)
        keep_best(run)


def _steps_with(run: Run, batches: Iterator[Batch], outcomes: Outcomes) -> bool:
    """Take the steps with these batches, which begin after the state's step. Returns False if the run was
    rolled back, so that the batches must start at another step."""
    recipe, state, schedule, log = run.recipe, run.state, run.schedule, run.log
    while state.step < schedule.last and not gains_no_more(run):
        # The next batch
        with log.meter.waiting():
            batch = next(batches)
        if run.stop.is_due(outcomes.stops):
            look(run, outcomes, lag=0)
            raise Interrupted

        # The learning rate, and the gradient. From then on the step counts as finished
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
        advance(recipe, state, outcome, position, synchronous=not outcomes.lag)

        # With a deadline, adapt the last step to the speed so far
        schedule.follow(state.step)
        log.total = schedule.last

        # Read the outcomes of earlier steps, or of all if something is written after this step
        finished_step = state.step
        lag = None
        if _writes(run):
            lag = 0
        if look(run, outcomes, lag) and state.step < finished_step:
            return False
        if due(state.step, recipe.log_every, schedule.last):
            log.training(state.step, recipe.batch, outcomes.loss, outcomes.norm, rate)
        log.at(state.step, recipe.batch, outcomes.loss)

        # Save, unless the step was skipped: the weights may be the cause, so a rollback must not
        # return to them. After the last step there is no rollback
        is_good = state.bad_in_row == 0 or state.step == schedule.last
        if due(state.step, recipe.save_every.in_steps, schedule.last) and is_good:
            with log.meter.pausing():
                state.save(run.run_dir, recipe.keep)

        evaluate(run)
        keep_best(run)
    return True


def _writes(run: Run) -> bool:
    """Whether the run logs, evaluates or saves after this step."""
    recipe = run.recipe
    if run.log.is_early(run.state.step):
        return True
    spans = [recipe.save_every, recipe.evaluate_every]
    spans += [interval(recipe, each) for each in recipe.evals]
    every = [recipe.log_every, *(span.in_steps for span in spans)]
    return any(due(run.state.step, steps, run.schedule.last) for steps in every)


def _refuse(recipe: Recipe, data: RunData, run_dir: Path) -> None:
    """Raises VitkitError if a resolved recipe cannot run on these images, or with this number of
    processes."""
    if recipe.model.classes:
        refuse_one_class(data.train, recipe.data)
    if not earlier_call(run_dir).trained:  # a run that continues was checked when it began
        check_best(recipe, data)
    world_size = world().world_size
    if recipe.batch % world_size:
        next_multiple = -(-recipe.batch // world_size) * world_size
        raise BadSettings(
            f"a batch of {recipe.batch} cannot be shared equally by {world_size} processes; choose "
            f"`batch={next_multiple}`, or another number of processes"
        )


def _save_interrupted(recipe: Recipe, run_dir: Path, state: State, log: Log) -> None:
    """Save the state at an interruption. If the last step was skipped, the state is not saved, and the run
    will continue from the checkpoint before that step."""
    if state.bad_in_row == 0:
        state.save(run_dir, recipe.keep, scheduled=False)
    state.wait()
    saved = max(state.saved_step, 0)
    log.say(f"interrupted at step {state.step:,}, saved at {saved:,}; the same command continues")


def _summary(recipe: Recipe, data: RunData, state: State) -> list[str]:
    """Sentences about the run: the model, the images, the settings that are often wrong (effective batch,
    learning rate, length), and warnings."""
    # The model and its device
    parameters = sum(p.numel() for p in state.learner.parameters())
    model = f"{parameters:,} parameters on {state.device}"
    if recipe.init:
        model = f"from {recipe.init}: {model}"
    if world().world_size > 1:
        model += f" and {world().world_size - 1} more"

    # The images
    height, width = recipe.training_preprocessing.size
    images = [counted(len(data.train), "training image")]
    images += [f"{len(part):,} {name}" for name, part in data.held_out.items()]
    targets = f"{len(data.facts.labels):,} classes"
    if data.facts.target_kind == "number":
        targets = "a number each"
    elif data.facts.target_kind == "mask":
        targets = f"masks of {len(data.facts.labels):,} classes"
    elif data.facts.target_kind == "none":
        targets = "no labels"
    images += [targets, f"{height} x {width}"]

    # The steps
    optim = recipe.optim
    steps = f"{recipe.length} of {recipe.batch} ({optim.name}, lr {optim.lr:g}, {optim.schedule})"
    if state.step:
        steps += f"; continuing at step {state.step:,}"

    # Warnings
    sentences = [f"{model}, {recipe.precision}; {', '.join(images)}; {steps}"]
    for about_the_machine in (about_tf32(state.device), about_compiling(state.device, recipe)):
        if about_the_machine:
            sentences.append(about_the_machine)
    if not data.held_out:
        sentences.append("nothing is held out to evaluate on")
    elif not recipe.evals:
        sentences.append("no evaluator measures this run: its images have no classes")
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
