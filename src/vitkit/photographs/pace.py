"""How long a fine-tuning takes on this machine, how many steps fit into a time, and when it pays to
make twice as many of images half as large."""

import math
from dataclasses import replace

from vitkit.data import Source
from vitkit.recipes.table_4 import few_pixels
from vitkit.system.span import Span
from vitkit.training import Recipe
from vitkit.weights.adopting import preprocessing_for

FEW_PIXELS = 128  # the side of a square that has more pixels than a small image,
SMALL = 160  # and the side at which it is fine-tuned: half the work of 224 a step
LOADING = 1.08  # what a step takes with the loader beside it, as a share of it alone
TIMED = 5  # steps, after one that warms up: their median does not see a moment of other work
FEWEST_EVALUATIONS = 4  # during the fine-tuning,
MOST_EVALUATIONS = 10  # so that it can end early,
EVALUATING = 0.05  # and the share of the time that they may take
EPOCHS = 20  # at most, however much time there is
FEWEST = 200  # steps that it may always have
TOO_FEW = 25  # steps that make nothing better


def for_few_pixels(recipe: Recipe, images: Source) -> Recipe:
    """The recipe at a smaller image size, if the images have so few pixels that the model's own size
    is mostly enlargement: in the same time twice the steps gain more than that. A solved head loses
    by it."""
    image = recipe.model.fitting((SMALL, SMALL))
    if min(recipe.model.image) <= min(image) or not few_pixels(images, FEW_PIXELS):
        return recipe
    try:
        model = recipe.model.resized(image)
    except ValueError:  # its positions have a meaning at one size only
        return recipe
    preprocessing = preprocessing_for(recipe.data.preprocessing, image)
    return replace(recipe, model=model, data=replace(recipe.data, preprocessing=preprocessing))


def evaluation_in_steps(recipe: Recipe, held_out: int) -> float:
    """What an evaluation on so many held-out images takes, in training steps: a forward pass takes a
    third of one."""
    return held_out / (3 * recipe.batch)


def steps_within(
    minutes: float, step: float, recipe: Recipe, learned: int, held_out: int
) -> tuple[int, float]:
    """How many steps of so many seconds to make in the time, beside the evaluations, for so many
    images to learn from and held out; 0 if too few fit to make anything better. And for how many
    minutes some would."""
    evaluations = max(
        FEWEST_EVALUATIONS * evaluation_in_steps(recipe, held_out) * step,
        EVALUATING * 60 * minutes,
    )
    enough = math.ceil((evaluations + FEWEST * step) / 60)
    steps = int((60 * minutes - evaluations) / step)
    if steps < TOO_FEW:
        return 0, enough
    epochs = Span(EPOCHS, "epochs").steps(recipe.batch, learned)
    return min(steps, max(FEWEST, int(epochs))), enough


def with_steps(recipe: Recipe, steps: int, held_out: int) -> Recipe:
    """The recipe for so many steps, with as many evaluations as are cheap; spans that were given
    stay."""
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
    """A time as people say it: "2 minutes", or "30 seconds"."""
    if minutes < 1:
        return f"{60 * minutes:.0f} seconds"
    if minutes == 1:
        return "a minute"
    return f"{minutes:g} minutes"
