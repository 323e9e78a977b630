"""The fine-tuning of the first model: whether it could gain anything, how long it may take, and the run.

The paper fine-tunes from a head of zeros (Section 3.2), and so does this: a solved head has a small
loss at once, so nothing would push the features to where they could be better.
"""

from vitkit.photographs.first import First
from vitkit.photographs.pace import steps_within, time_text, with_steps
from vitkit.photographs.plan import write_plan
from vitkit.photographs.work import Work, pretrained
from vitkit.system.ranks import from_rank_0
from vitkit.system.text import counted
from vitkit.training import train
from vitkit.training.stop import Ends
from vitkit.training.timed import seconds_of_a_step
from vitkit.weights import Classifier

RUN = "fine-tuned"  # the directory of the fine-tuning, in that of the answer
MANY = 100  # held-out images: if all are answered rightly, there is nothing to gain


def steps_for(work: Work, first: First) -> tuple[int, float]:
    """How many steps to fine-tune for, 0 if that would make nothing better, which is said; and for
    how many minutes one would do it next."""
    recipe = work.tuning
    photographs = work.photographs
    minutes = work.plan.minutes
    more = 5 * minutes

    # Where it could gain nothing
    if first.held_out is None:
        work.say(
            "nothing can be held out to choose by, so nothing is fine-tuned: more images would help"
        )
        return 0, more
    scores = first.held_out.scores
    if (scores == 1).all() and len(scores) >= MANY:
        work.say("every held-out image is answered rightly: fine-tuning could gain nothing")
        return 0, more

    # As the caller says, or as an earlier call decided
    if recipe.length.n:
        return round(recipe.length.steps(recipe.batch, len(photographs.train))), more
    if work.plan.steps is not None:
        return work.plan.steps, more

    # What fits into the time
    model = first.bare.model
    if recipe.model.image != work.recipe.model.image:
        model = pretrained(work, recipe, first.asked.labels).model
    step = from_rank_0(lambda: seconds_of_a_step(model, recipe, work.device))
    counts = (len(photographs.train), len(photographs.held_out))
    steps, enough = steps_within(minutes, step, recipe, *counts)
    if not steps:
        work.say(
            f"a training step takes {step:.1f} s here, too long for {time_text(minutes)}: "
            f"--minutes {enough} would do, or smaller weights, or a GPU"
        )
        return 0, enough
    write_plan(work.run_dir, work.plan._replace(steps=steps))
    return steps, more


def fine_tuned(work: Work, steps: int) -> Classifier:
    """The fine-tuned model; continues the run if it was interrupted."""
    recipe = with_steps(work.tuning, steps, len(work.photographs.held_out))
    time_allowed = None
    text = ""
    if not work.recipe.length.n:
        time_allowed = 60 * work.plan.minutes
        text = f", {time_text(work.plan.minutes)} at most"
    size = ""
    if recipe.model.image != work.recipe.model.image:
        height, width = recipe.model.image
        size = f" at {height} x {width} pixels, enough for such small images,"
    work.say(
        f"now fine-tuning{size} for {counted(steps, 'step')}{text}; Ctrl-C ends it and keeps the "
        "better model"
    )
    end = Ends(by_a_person=True, after=time_allowed)
    return train(recipe, work.run_dir / RUN, work.device.type, ends=end)
