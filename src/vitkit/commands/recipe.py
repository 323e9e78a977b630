"""The recipe that the first word of `vitkit train` and `vitkit plan` names.

Two options decide which settings a recipe has, so they are read before all others: --model and
--evals.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from vitkit.commands import WordsMissing
from vitkit.evaluate import EVALUATORS, Eval
from vitkit.recipes import listing, recipe, with_model
from vitkit.train import Recipe


def first_recipe(command: str, words: list[str]) -> Recipe:
    """The recipe that the first word names, with the model of --model and the evaluators of
    --evals.

    Raises WordsMissing, with a list of recipes, if the first word is no name; ValueError for an
    unknown recipe.
    """
    if not words or words[0].startswith("-"):
        raise WordsMissing(
            f"usage: vitkit {command} RECIPE [--model NAME] [--setting value]\n\n"
            f"recipes (or file.py:function):\n{listing()}\n\n"
            f"vitkit {command} RECIPE --help lists every setting with its value."
        )
    named = with_evals(recipe(words[0]), words)
    model = last_value("--model", words)
    if not model:
        return named
    return with_model(named, model)


def with_evals(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe with the evaluators that --evals names; as it is if --evals is not there."""
    if "--evals" not in words:
        return recipe
    names = []
    for word in words[words.index("--evals") + 1 :]:
        if word not in EVALUATORS:  # an option, or a name that the command line will refuse
            break
        names.append(word)
    evals = tuple(Eval(EVALUATORS[name]) for name in names)
    return replace(recipe, evals=evals)


def last_value(option: str, words: list[str]) -> str:
    """The value of an option, "--option value" or "--option=value"; the last if it is given again,
    and "" if it is not there."""
    value = ""
    for word, following in pairwise([*words, ""]):
        if word == option:
            value = following
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value
