"""The choice between cropped and uncropped images for the closed-form head, where most are not square.

The first model, of cropped images, exists by then. A second pass over the images takes as long as
the first one, so it is made only if half of the time is left. The best feature set for uncropped
images is used if its leave-one-out predictions are better than those with the centre crop by more
than chance. A model that crops opens in other libraries, in a page and in `vitkit faster`; one of
uncropped images does not.
"""

from dataclasses import replace

import numpy as np

from vitkit.data import Source
from vitkit.finetuning.candidates import answered_by_others, best, image_weights
from vitkit.finetuning.head_inputs import FittedHead, by_left_out, read
from vitkit.finetuning.plan import RunInputs, write_plan
from vitkit.recipes import Recipe
from vitkit.system.console.text import counted
from vitkit.system.errors import VitkitError
from vitkit.system.processes.ranks import from_rank_0
from vitkit.weights.fitting import at_own_proportions

MEASURED = 200  # largest number of images whose sizes are read
# What the preprocessing does with images otherwise, by its `resize` rule, and the value of `crop` for it
CROPPED = {"shorter": ("with the centre cut out", "centre"), "square": ("made square", "whole")}
SQUARE = 1.1  # longest ratio of the sides at which a crop loses hardly anything


def with_own_proportions(work: RunInputs) -> RunInputs:
    """The inputs of a run on images that keep their proportions. Raises VitkitError if the model cannot
    read them."""
    recipe = work.recipe
    preprocessing = at_own_proportions(recipe.data.preprocessing, recipe.model)
    return replace(
        work, recipe=replace(recipe, data=replace(recipe.data, preprocessing=preprocessing))
    )


def with_crop(recipe: Recipe) -> Recipe:
    """The recipe of a fine-tuning, which needs images of one size: a centre crop replaces images at their
    own proportions."""
    preprocessing = recipe.data.preprocessing
    if not preprocessing.is_native:
        return recipe
    cropped = replace(preprocessing, rule="shorter", size=recipe.model.image)
    return replace(recipe, data=replace(recipe.data, preprocessing=cropped))


def chosen_proportions(work: RunInputs, reading: FittedHead) -> tuple[RunInputs, FittedHead | None]:
    """The head on uncropped images if it is better than the given one; None if it is not, or if
    there is no time to try. Logs the result. The returned inputs hold the decision in their
    plan."""
    if not _is_undecided(work) or not reading.whole.known.any():
        return work, None
    if not from_rank_0(
        lambda: 4 * work.spent() < 60 * work.plan.minutes
    ):  # half for the second pass
        return _with_decision(work, False), None
    images = work.photographs.learned
    count = not_square(images)
    if 2 * count <= len(images):
        return _with_decision(work, False), None

    # The best feature set on uncropped images
    try:
        other = with_own_proportions(work)
    except VitkitError:  # the model cannot read them
        return _with_decision(work, False), None
    quiet = replace(other, plan=work.plan._replace(reading=None), say=_discard)
    whole = read(quiet)
    tried = [by_left_out(reading, "cropped"), by_left_out(whole, "whole")]
    weights = image_weights(reading.asked, reading.learned.y) * reading.whole.known.numpy()
    is_better = from_rank_0(lambda: best(tried, weights) is tried[1])

    # The result
    groups = images.groups
    cropped = next(reading.asked.left_out_quality(reading.whole, reading.learned.y, groups))
    of_whole = next(reading.asked.left_out_quality(whole.whole, whole.learned.y, groups))
    figures = f"{of_whole.unit.text(of_whole.value)} instead of {cropped.unit.text(cropped.value)}"
    now, option = CROPPED[work.recipe.data.preprocessing.rule]
    not_squares = f"about {count:,} of {counted(len(images), 'image')} are not square"
    if not is_better:
        work.say(
            f"{not_squares}: whole, at their own proportions, they give {figures} by "
            f"leave-one-out, which chance may explain, so they stay {now} (`crop='native'` reads them whole)"
        )
        return _with_decision(work, False), None
    work.say(
        f"{not_squares}, so they are read whole, at their own proportions: {figures} {now}, by "
        f"leave-one-out (`crop={option!r}` keeps to that)"
    )

    # Cross-fitted: an image has no influence on the choice of the head that predicts it
    head = answered_by_others(whole.whole, [reading.whole, whole.whole], tried, weights)
    return _with_decision(other, True), whole._replace(whole=head)


def _is_undecided(work: RunInputs) -> bool:
    """Whether neither the caller nor an earlier call has decided."""
    if work.plan.portable or work.recipe.data.preprocessing.is_native:
        return False
    return work.plan.native is None and work.plan.steps is None


def _with_decision(work: RunInputs, native: bool) -> RunInputs:
    """The inputs with the decision in their plan, which is saved."""
    plan = work.plan._replace(native=native)
    write_plan(work.run_dir, plan)
    return replace(work, plan=plan)


def _discard(sentence: str) -> None:
    """Discard messages about a head that may not be kept."""


def not_square(source: Source) -> int:
    """How many images have one side longer than the other by a factor of more than SQUARE; for many
    images an estimate from a sample."""
    looked_at = np.linspace(0, len(source) - 1, min(len(source), MEASURED)).astype(int).tolist()
    count = 0
    for i in looked_at:
        height, width = source.picture(i).size
        count += max(height, width) > SQUARE * min(height, width)
    return round(count * len(source) / len(looked_at))
