"""The fine-tuning of the first model: whether it could gain anything, how long it may take, and the run.

The paper fine-tunes from a head of zeros (Section 3.2), and so does this: a solved head has a small
loss at once, so nothing would push the features to where they could be better.
"""

import math
import time
from typing import NamedTuple

from vitkit.quick.first import First
from vitkit.quick.pace import (
    FEWEST,
    TOO_FEW,
    evaluation_in_steps,
    evaluations_take,
    most_steps,
    time_text,
    with_steps,
)
from vitkit.quick.plan import write_plan
from vitkit.quick.work import Work, pretrained
from vitkit.system.console.text import counted
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training import Deadline, Ends, seconds_of_a_step, train
from vitkit.weights import Classifier

RUN = "fine-tuned"  # the directory of the fine-tuning, in that of the answer
MANY = 100  # held-out images: if all are answered rightly, there is nothing to gain


class Tuning(NamedTuple):
    """How long to fine-tune."""

    steps: int
    """As far as is known; 0 if it would make nothing better."""
    next_minutes: float
    """For how long one would do it next."""
    deadline: Deadline | None = None
    """When it ends in any case."""


def tuning_for(work: Work, first: First) -> Tuning:
    """How long to fine-tune. Says why, if it would make nothing better."""
    recipe = work.tuning
    photographs = work.photographs
    minutes = work.plan.minutes
    more = 5 * minutes

    # Where it could gain nothing
    if first.held_out is None:
        work.say(
            "nothing can be held out to choose by, so nothing is fine-tuned: more images would help"
        )
        return Tuning(0, more)
    scores = first.held_out.scores
    if (scores == 1).all() and len(scores) >= MANY:
        work.say("every held-out image is answered rightly: fine-tuning could gain nothing")
        return Tuning(0, more)

    # As the caller says, or as an earlier call decided
    if recipe.length.n:
        return Tuning(round(recipe.length.steps(recipe.batch, len(photographs.train))), more)
    if work.plan.steps is not None:
        return Tuning(work.plan.steps, more, _deadline(work, work.plan.seconds_of_a_step))

    # What a step takes, and what fits into the time that is left. How many steps it will be is known
    # only when they are made: the run adapts its schedule to its pace (training/schedule.py)
    model = first.bare.model
    if recipe.model.image != work.recipe.model.image:
        model = pretrained(work, recipe, first.asked.labels).model
    quick_enough = math.inf
    if work.spent() < 60 * minutes:
        quick_enough = (60 * minutes - work.spent()) / (2 * TOO_FEW)
    step = from_rank_0(lambda: seconds_of_a_step(model, recipe, work.device, quick_enough))
    deadline = _deadline(work, step)
    left = from_rank_0(lambda: deadline.at - time.monotonic())
    evaluations = evaluations_take(max(left, 0), step, recipe, len(photographs.held_out))
    steps = int((left - evaluations) / step)
    if steps < TOO_FEW:
        enough = math.ceil((60 * minutes - left + evaluations + FEWEST * step) / 60)
        over = ""
        if work.spent() > 30 * minutes:
            over = f", of which {work.spent():.0f} s are over"
        work.say(
            f"a training step takes {step:.1f} s here, too long for {time_text(minutes)}{over}: "
            f"--minutes {enough} would do, or smaller weights, or a GPU"
        )
        return Tuning(0, enough)
    steps = min(steps, deadline.most)
    write_plan(work.run_dir, work.plan._replace(steps=steps, seconds_of_a_step=step))
    return Tuning(steps, more, deadline)


def _deadline(work: Work, step: float) -> Deadline:
    """When fine-tuning by steps of so many seconds has to end, so that what follows it fits into the
    time too: the answers of two models to the held-out images, and of one to those to test on."""
    photographs = work.photographs
    answered = 2 * len(photographs.held_out)
    if photographs.test is not None:
        answered += len(photographs.test)
    afterwards = evaluation_in_steps(work.tuning, answered) * step
    most = most_steps(work.tuning, len(photographs.train))
    return Deadline(work.began + 60 * work.plan.minutes - afterwards, most)


def fine_tuned(work: Work, tuning: Tuning) -> Classifier:
    """The fine-tuned model; continues the run if it was interrupted."""
    recipe = with_steps(work.tuning, tuning.steps, len(work.photographs.held_out))
    steps = counted(tuning.steps, "step")
    if tuning.deadline is not None:
        steps = f"some {steps}, as many as fit into {time_text(work.plan.minutes)}"
    size = ""
    if recipe.model.image != work.recipe.model.image:
        height, width = recipe.model.image
        size = f" at {height} x {width} pixels, enough for such small images,"
    work.say(f"now fine-tuning{size} for {steps}; Ctrl-C ends it and keeps the better model")
    ends = Ends(by_a_person=True, deadline=tuning.deadline)
    return train(recipe, work.run_dir / RUN, work.device.type, ends=ends)
