"""How long a fine-tuning takes on this machine, how many steps fit into a time, and when it pays to
make twice as many of images half as large."""

from dataclasses import replace

from vitkit.data import Source
from vitkit.recipes import few_pixels
from vitkit.system.span import Span
from vitkit.training import Recipe
from vitkit.weights import preprocessing_for

FEW_PIXELS = 128  # the side of a square that has more pixels than a small image,
SMALL = 160  # and the side at which it is fine-tuned: half the work of 224 a step
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


def most_steps(recipe: Recipe, learned: int) -> int:
    """How many steps to make at most, however much time there is, for so many images to learn from."""
    epochs = Span(EPOCHS, "epochs").steps(recipe.batch, learned)
    return max(FEWEST, int(epochs))


def evaluations_take(seconds: float, step: float, recipe: Recipe, held_out: int) -> float:
    """Seconds of the given ones that evaluations on so many held-out images take, if a step takes
    `step` seconds."""
    fewest = FEWEST_EVALUATIONS * evaluation_in_steps(recipe, held_out) * step
    return max(fewest, EVALUATING * seconds)


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
