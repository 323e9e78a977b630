"""`vitkit plan RECIPE`: the settings of a run, before those of the machine."""

from vitkit.commands import Defaults
from vitkit.commands.recipe import first_recipe
from vitkit.verbs import Plan


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the recipe and the images that the first words name."""
    recipe, count = first_recipe("plan", words, "--gpus N --memory GIB --examples N")
    return Defaults(Plan(recipe), count)
