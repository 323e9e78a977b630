"""The recipe that the first word of `vitkit train` and `vitkit plan` names.

Two options decide which settings there are, so they are read before tyro reads all words: --model
(a ResNet has other settings than a Vision Transformer) and --evals (each evaluator has its own).
"""

from collections.abc import Sequence
from dataclasses import replace

from vitkit.commands import WordsMissing
from vitkit.evaluate import EVALUATORS, Eval
from vitkit.recipes import listing, recipe, with_model
from vitkit.system.terminal import fill
from vitkit.training import Recipe


def first_recipe(command: str, words: list[str], options: str = "") -> Recipe:
    """The recipe that the first word names, with the model of --model and the evaluators of
    --evals. `options` are the command's own, for its usage.

    Raises WordsMissing, with a list of recipes, if the first word is no name; ValueError for an
    unknown recipe.
    """
    if not words or words[0].startswith("-"):
        usage = f"usage: vitkit {command} RECIPE {options} [--model NAME] [--setting value]"
        raise WordsMissing(
            f"{' '.join(usage.split())}\n\n"
            f"Recipes (or file.py:function):\n{listing()}\n\n"
            f"{fill(f'vitkit {command} RECIPE --help lists every setting with its value.')}"
        )
    named = with_evals(recipe(words[0]), words)
    model = option_words("--model", words)
    if not model or not model[0]:
        return named
    return with_model(named, model[0])


def with_evals(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe with the evaluators that --evals names; as it is if --evals is not there."""
    names = option_words("--evals", words)
    if names is None:
        return recipe
    # tyro will refuse a name that does not exist
    evals = tuple(Eval(EVALUATORS[name]) for name in names if name in EVALUATORS)
    return replace(recipe, evals=evals)


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
