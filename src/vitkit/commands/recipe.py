"""The recipe that the first word of `vitkit train` and `vitkit plan` names.

Two options decide which settings there are, so they are read before tyro reads all words: --model
(a ResNet has other settings than a Vision Transformer) and --evals (each evaluator has its own). So
is --length, which the warm-up follows.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.commands import WordsMissing
from vitkit.commands.translation import kind_of
from vitkit.evaluation import EVALUATORS, Eval
from vitkit.recipes import RECIPES, listing, recipe, with_model
from vitkit.system.console.terminal import fill
from vitkit.system.console.text import as_word
from vitkit.system.scripts import functions_of
from vitkit.system.span import Span
from vitkit.training import Recipe


def first_recipe(command: str, words: list[str], options: str = "") -> tuple[Recipe, int]:
    """The recipe that the first word names, on the images that the second one does, if that is no
    option, with the model of --model and the evaluators of --evals; and how many words these were.
    `options` are the command's own, for its usage.

    Raises WordsMissing, with a list of recipes, if the first word is no name; ValueError for an
    unknown recipe.
    """
    if not words or words[0].startswith("-"):
        usage = f"usage: vitkit {command} RECIPE [DATA] {options} [--model NAME] [--setting value]"
        raise WordsMissing(
            f"{fill(' '.join(usage.split()))}\n\n"
            f"Recipes (or file.py:function):\n{listing()}\n\n"
            f"{fill(f'vitkit {command} RECIPE --help says more.')}"
        )

    # The recipe, and its images
    named = with_length(with_evals(recipe(_recipe_word(command, words)), words), words)
    count = 1
    if len(words) > 1 and not words[1].startswith("-"):
        images = replace(named.data, source=words[1])
        named = replace(named, data=images)
        count = 2

    # Another model
    model = option_words("--model", words)
    if model and model[0]:
        named = with_model(named, model[0])
    return named, count


def _recipe_word(command: str, words: list[str]) -> str:
    """The first word, or what it must mean: a file of one's own with one function is that function.
    Raises ValueError, with the right words, for images in the place of a recipe."""
    first = words[0]
    path = Path(first)
    if first in RECIPES:
        return first

    # A file of recipes, without a function of it
    if path.suffix == ".py" and kind_of(first) == "file":
        names = functions_of(path)
        if len(names) == 1:
            print(f"took {first} for {first}:{names[0]}, its only function", file=sys.stderr)
            return f"{first}:{names[0]}"
        choices = " or ".join(f"{first}:{name}" for name in names) or "a function that returns one"
        raise ValueError(f"{first} is a file, and a recipe is a function of it: say {choices}")

    # Images
    if kind_of(first):
        images = as_word(first)
        others = [word for word in words[1:2] if word in RECIPES]
        if others:
            raise ValueError(
                f"the recipe comes before the images: vitkit {command} {others[0]} {images}"
            )
        raise ValueError(
            f"{first} are images, and no recipe: vitkit finetune {images} trains published weights "
            f"on them, which few images suffice for; vitkit {command} scratch {images} begins "
            "without any"
        )
    return first


def with_evals(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe with the evaluators that --evals names; as it is if --evals is not there."""
    names = option_words("--evals", words)
    if names is None:
        return recipe
    # tyro will refuse a name that does not exist
    evals = tuple(Eval(EVALUATORS[name]) for name in names if name in EVALUATORS)
    return replace(recipe, evals=evals)


def with_length(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe with the length that --length asks for, and a warm-up that is the same share of it as
    before, which is said; as it is if --length is not there, or --optim.warmup is too."""
    length = option_words("--length", words)
    if not length or option_words("--optim.warmup", words) is not None:
        return recipe
    try:
        asked = Span.parse(length[0])
    except ValueError:  # tyro will refuse it
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
    print(
        f"the warm-up is {own}, the same share of --length as the recipe's {warmup} of {before}; "
        "--optim.warmup sets it",
        file=sys.stderr,
    )
    return replace(recipe, length=asked, optim=replace(recipe.optim, warmup=own))


def with_augmentation_as_given(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe with an augmentation that is not asked about if the words have settings of it: they
    are taken as they are. With --data.augmentation.auto among them it is asked about all the same."""
    augmentation = recipe.data.augmentation
    given = [word for word in words if word.startswith("--data.augmentation.")]
    asks = [word for word in given if "auto" in word]
    if not given or asks or not augmentation.auto:
        return recipe
    data = replace(recipe.data, augmentation=replace(augmentation, auto=False))
    return replace(recipe, data=data)


def option_words(option: str, words: Sequence[str]) -> list[str] | None:
    """The words that belong to an option: those up to the next option, or the word in
    "--option=word". If the option is there twice, the last one counts. None if it is not there."""
    values = None
    in_option = False
    for word in words:
        if word == option:
            values = []
            in_option = True
        elif word.startswith(f"{option}="):
            values = [word.partition("=")[2]]
            in_option = True
        elif word.startswith("--"):
            in_option = False
        elif in_option:
            values.append(word)
    return values
