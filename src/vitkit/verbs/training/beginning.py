"""What follows for a run from the settings that are given: those that were not given follow from
others, such as the warm-up from the length."""

from collections.abc import Sequence
from dataclasses import replace

from vitkit.evaluation import EVALUATORS, Eval
from vitkit.system.console.saying import say
from vitkit.system.span import Span
from vitkit.training import Recipe


def with_evals(recipe: Recipe, names: Sequence[str] | None) -> Recipe:
    """The recipe with the evaluators of these names; as it is without any. Names that there are none
    of are left to be refused."""
    if names is None:
        return recipe
    evals = tuple(Eval(EVALUATORS[name]) for name in names if name in EVALUATORS)
    return replace(recipe, evals=evals)


def with_length(recipe: Recipe, asked: Span | None, given: frozenset[str]) -> Recipe:
    """The recipe with the length that is asked for, and a warm-up that is the same share of it as
    before, which is said; as it is if none is asked for, or the warm-up is given too."""
    if asked is None or "optim.warmup" in given:
        return recipe
    before = recipe.length
    warmup = recipe.optim.warmup
    if not warmup.n or not before.n or warmup.unit != before.unit:
        return recipe
    share = warmup.n / before.n
    number = asked.n * share
    if asked.unit == "steps":
        number = round(number)
    own = Span(number, asked.unit)
    if own == warmup:
        return recipe
    say(
        f"the warm-up is {own}, the same share of --length as the recipe's {warmup} of {before}; "
        "--optim.warmup sets it"
    )
    return replace(recipe, length=asked, optim=replace(recipe.optim, warmup=own))


def with_augmentation_as_given(recipe: Recipe, given: frozenset[str]) -> Recipe:
    """The recipe with an augmentation that is not asked about if settings of it are given: they are
    taken as they are. If data.augmentation.auto is among them it is asked about all the same."""
    augmentation = recipe.data.augmentation
    own = [name for name in given if name.startswith("data.augmentation.")]
    asks = [name for name in own if "auto" in name]
    if not own or asks or not augmentation.auto:
        return recipe
    data = replace(recipe.data, augmentation=replace(augmentation, auto=False))
    return replace(recipe, data=data)
