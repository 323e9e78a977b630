"""The first word of `vitkit train` and `vitkit plan`, a recipe; and options that decide which settings it has."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from vitkit.commands import WordsMissing
from vitkit.evaluate import EVALUATORS, Eval
from vitkit.recipes import listing, recipe, with_model
from vitkit.train import Recipe


def first_recipe(command: str, words: list[str]) -> Recipe:
    """The recipe that the first word names, with the model that --model names and what --evals does: each has settings.

    Raises WordsMissing, with every recipe's name, if the first word is no name; ValueError for an unknown one.
    """
    if not words or words[0].startswith("-"):
        raise WordsMissing(
            f"usage: vitkit {command} RECIPE [--model NAME] [--setting value]\n\n"
            f"recipes (or file.py:function):\n{listing()}\n\n"
            f"vitkit {command} RECIPE --help lists every setting with its value."
        )
    chosen = with_evals(recipe(words[0]), words)
    model = last_value("--model", words)
    return with_model(chosen, model) if model else chosen


def with_evals(chosen: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe, measured by the evaluators that --evals names, if it is there."""
    if "--evals" not in words:
        return chosen
    names = []
    for word in words[words.index("--evals") + 1 :]:
        if word not in EVALUATORS:  # an option, or a name that the command line will refuse
            break
        names.append(word)
    evals = tuple(Eval(EVALUATORS[name]) for name in names)
    return replace(chosen, evals=evals)


def last_value(option: str, words: list[str]) -> str:
    """What an option of one value is set to, the last time it is; empty if it is not set."""
    value = ""
    for word, following in pairwise([*words, ""]):
        if word == option:
            value = following
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value
