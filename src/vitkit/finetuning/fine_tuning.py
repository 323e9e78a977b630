"""The fine-tuning stage: whether it can improve on the first model, how long it may take, and its run.

Fine-tuning starts from an all-zero head, as in the paper (Section 3.2): a closed-form head starts with a
small loss, so gradients would hardly change the features.
"""

import math
import time
from dataclasses import replace
from typing import NamedTuple

import torch

from vitkit.data import Source
from vitkit.finetuning.first_model import First
from vitkit.finetuning.plan import RunInputs, pretrained, write_plan
from vitkit.recipes import Recipe
from vitkit.recipes.table_4 import few_pixels
from vitkit.system.console.text import counted
from vitkit.system.errors import VitkitError
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.span import Span
from vitkit.training import Deadline, Ends, run_recipe, seconds_of_a_step
from vitkit.weights import Classifier, preprocessing_for

RUN = "fine-tuned"  # directory of the fine-tuning, inside the run directory
MANY = 100  # if at least this many held-out images are all classified correctly, fine-tuning is skipped


class Tuning(NamedTuple):
    """The length of the fine-tuning."""

    steps: int
    """Number of steps as far as known; 0 if fine-tuning would not improve the model."""
    next_minutes: float
    """Suggested minutes for the next call."""
    deadline: Deadline | None = None
    """Time at which the fine-tuning ends in any case."""
    compiled: bool = False
    """Whether the model is compiled."""


def tuning_for(work: RunInputs, first: First) -> Tuning:
    """The length of the fine-tuning. Logs why if fine-tuning would not improve the model."""
    recipe = work.tuning
    photographs = work.photographs
    minutes = work.plan.minutes
    more = 5 * minutes

    # Where fine-tuning is skipped
    if first.held_out is None:
        work.say(
            "no image can be held out to choose a model, so nothing is fine-tuned: more images would help"
        )
        return Tuning(0, more)
    scores = first.held_out.scores
    if (scores == 1).all() and len(scores) >= MANY:
        work.say("every held-out image is classified correctly: fine-tuning could gain nothing")
        return Tuning(0, more)

    # A length that was given, or that an earlier call decided
    if recipe.length.n:
        return Tuning(round(recipe.length.steps(recipe.batch, len(photographs.train))), more)
    if work.plan.steps is not None:
        deadline = _deadline(work, work.plan.seconds_of_a_step)
        return Tuning(work.plan.steps, more, deadline, work.plan.compiled)

    # The steps that fit into the time that is left. Their exact number is known only at the end: the run
    # adapts its schedule to its pace (training/schedule.py)
    model = first.bare.model
    if recipe.model != work.recipe.model:
        model = pretrained(work, recipe, first.asked.labels).model
    quick_enough = math.inf
    if work.spent() < 60 * minutes:
        quick_enough = (60 * minutes - work.spent()) / (2 * TOO_FEW)
    step = from_rank_0(lambda: seconds_of_a_step(model, recipe, work.device, quick_enough))
    deadline = _deadline(work, step)
    left = from_rank_0(lambda: deadline.at - time.monotonic())
    # Time of the evaluations on the held-out images, in seconds
    seconds = max(left, 0)
    assert photographs.held_out is not None  # fine-tuning requires held-out images
    held_out = len(photographs.held_out)
    fewest = FEWEST_EVALUATIONS * evaluation_in_steps(recipe, held_out) * step
    evaluations = max(fewest, EVALUATING * seconds)
    steps = int((left - evaluations) / step)
    if steps < TOO_FEW:
        enough = math.ceil((60 * minutes - left + evaluations + FEWEST * step) / 60)
        over = ""
        if work.spent() > 30 * minutes:
            over = f", of which {work.spent():.0f} s are over"
        work.say(
            f"a training step takes {step:.1f} s here, too long for {time_text(minutes)}{over}: "
            f"`minutes={enough}` would do, or smaller weights, or a GPU"
        )
        return Tuning(0, enough)
    steps = min(steps, deadline.most)
    compiled = worth_compiling(work.device, steps * step)
    plan = work.plan._replace(steps=steps, seconds_of_a_step=step, compiled=compiled)
    write_plan(work.run_dir, plan)
    return Tuning(steps, more, deadline, compiled)


def worth_compiling(device: torch.device, seconds: float) -> bool:
    """Whether a fine-tuning of this length gains more by torch.compile than compiling takes."""
    return device.type == "cuda" and seconds > LONG


def _deadline(work: RunInputs, step: float) -> Deadline:
    """The time at which fine-tuning must end, so that the predictions after it fit into the time too: of
    two models for the held-out images, and of one for the test images. step: seconds per step."""
    photographs = work.photographs
    assert photographs.held_out is not None  # fine-tuning requires held-out images
    answered = 2 * len(photographs.held_out)
    if photographs.test is not None:
        answered += len(photographs.test)
    afterwards = evaluation_in_steps(work.tuning, answered) * step
    # The largest number of steps, however much time is left
    learned = len(photographs.train)
    epochs = Span(EPOCHS, "epochs").steps(work.tuning.batch, learned)
    most = max(FEWEST, int(epochs))
    return Deadline(work.began + 60 * work.plan.minutes - afterwards, most)


def fine_tuned(work: RunInputs, tuning: Tuning) -> Classifier:
    """The fine-tuned model; continues the run if it was interrupted."""
    assert work.photographs.held_out is not None  # fine-tuning requires held-out images
    recipe = with_steps(work.tuning, tuning.steps, len(work.photographs.held_out))
    recipe = replace(recipe, compile=recipe.compile or tuning.compiled)
    steps = counted(tuning.steps, "step")
    if tuning.deadline is not None:
        steps = f"some {steps}, as many as fit into {time_text(work.plan.minutes)}"
    size = ""
    if recipe.model.image != work.recipe.model.image:
        height, width = recipe.model.image
        size = f" at {height} x {width} pixels, enough for such small images,"
    work.say(f"now fine-tuning{size} for {steps}; Ctrl-C ends it and keeps the better model")
    ends = Ends(by_a_person=True, deadline=tuning.deadline)
    return run_recipe(recipe, work.run_dir / RUN, work.device.type, ends=ends)


# Time per step on this machine, the number of steps that fit, and the smaller image size for images of
# few pixels

FEW_PIXELS = 128  # side of a square; images of at most as many pixels are small
SMALL = 160  # image size for fine-tuning small images: half the computation of 224
FEWEST_EVALUATIONS = 4  # during the fine-tuning
MOST_EVALUATIONS = 10  # during the fine-tuning, for early stopping
EVALUATING = 0.05  # largest share of the time for evaluations
EPOCHS = 20  # largest number of epochs, however much time is left
FEWEST = 200  # steps that are always allowed, whatever EPOCHS gives
TOO_FEW = 25  # fewer steps than this improve nothing
LONG = 300.0  # seconds; compiling takes about a fifth of that, and makes steps about a third faster


def for_few_pixels(recipe: Recipe, images: Source) -> Recipe:
    """The recipe at a smaller image size, if the images have so few pixels that the model's own size is
    mostly upsampling. Twice as many steps fit into the same time, which improves the model more than
    the larger size would. Not for the closed-form head, which is worse at the smaller size."""
    image = recipe.model.fitting((SMALL, SMALL))
    if min(recipe.model.image) <= min(image) or not few_pixels(images, FEW_PIXELS):
        return recipe
    try:
        model = recipe.model.resized(image)
    except VitkitError:  # position embeddings that cannot be interpolated
        return recipe
    preprocessing = preprocessing_for(recipe.data.preprocessing, image)
    return replace(recipe, model=model, data=replace(recipe.data, preprocessing=preprocessing))


def evaluation_in_steps(recipe: Recipe, held_out: int) -> float:
    """The time of an evaluation on this many held-out images, in training steps: a forward pass
    takes a third of one."""
    return held_out / (3 * recipe.batch)


def with_steps(recipe: Recipe, steps: int, held_out: int) -> Recipe:
    """The recipe for this number of steps, with as many evaluations as are cheap; explicitly given
    spans are kept."""
    affordable = int(EVALUATING * steps / evaluation_in_steps(recipe, held_out))
    evaluations = min(max(affordable, FEWEST_EVALUATIONS), MOST_EVALUATIONS)
    if not recipe.optim.warmup.n:
        recipe = replace(recipe, optim=replace(recipe.optim, warmup=Span(steps // 10, "steps")))
    if not recipe.evaluate_every.n:
        recipe = replace(recipe, evaluate_every=Span(max(steps // evaluations, 1), "steps"))
    if not recipe.save_every.n:
        recipe = replace(recipe, save_every=Span(max(steps // 4, 1), "steps"))
    log_every = max(min(recipe.log_every, steps // 10), 1)
    return replace(recipe, length=Span(steps, "steps"), log_every=log_every)


def time_text(minutes: float) -> str:
    """A duration as text: "2 minutes", or "30 seconds"."""
    if minutes < 1:
        return f"{60 * minutes:.0f} seconds"
    if minutes == 1:
        return "a minute"
    return f"{minutes:g} minutes"
