"""The first word of `vitkit train` and `vitkit plan`: a recipe."""

from itertools import pairwise

from vitkit.commands import WordsMissing
from vitkit.recipes import listing, recipe, with_model
from vitkit.train import Recipe


def first_recipe(command: str, words: list[str]) -> Recipe:
    """The recipe that the first word names, with the model that --model names, for whose kind there are other settings.

    Raises WordsMissing, with every recipe's name, if the first word is no name; ValueError for an unknown one.
    """
    if not words or words[0].startswith("-"):
        raise WordsMissing(
            f"usage: vitkit {command} RECIPE [--model NAME] [--setting value]\n\n"
            f"recipes (or file.py:function):\n{listing()}\n\n"
            f"vitkit {command} RECIPE --help lists every setting with its value."
        )
    chosen = recipe(words[0])
    model = last_value("--model", words)
    return with_model(chosen, model) if model else chosen


def last_value(option: str, words: list[str]) -> str:
    """What an option of one value is set to, the last time it is; empty if it is not set."""
    value = ""
    for word, following in pairwise([*words, ""]):
        if word == option:
            value = following
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value
