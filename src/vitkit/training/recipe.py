"""The names of recipes where files of recipes written before import them from: `vitkit.recipes` has them."""

from vitkit.recipes import Data, Optim, Recipe, Tune

__all__ = ["Data", "Optim", "Recipe", "Tune"]
