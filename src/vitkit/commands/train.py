"""`vitkit train RECIPE [DATA]`: the settings of a run."""

from vitkit.commands import Defaults
from vitkit.commands.recipe import first_recipe
from vitkit.verbs import Train


def defaults(words: list[str]) -> Defaults:
    """Every setting of a run, from the recipe and the images that the first words name."""
    recipe, count = first_recipe("train", words)
    return Defaults(Train(recipe), count)
