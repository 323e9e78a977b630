"""Recipes: data about training, as functions that return a Recipe. A docstring says the command, its cost, what it reached."""

import runpy
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from vitkit.models import LeNetConfig, ViTConfig, named
from vitkit.recipes.small import cifar10, cifar10_laptop, cifar10_masked_laptop, digits, scratch
from vitkit.train import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar10-laptop": cifar10_laptop,
    "cifar10-masked-laptop": cifar10_masked_laptop,
    "scratch": scratch,
}


def with_model(recipe: Recipe, name: str) -> Recipe:
    """The same training of a named model: `with_model(cifar10(), "BiT-R50x1")`, with the recipe's classes and channels.

    Images keep the recipe's size, or, where the model cannot cut that, take the multiple of its stride just below.
    """
    model = named(name, classes=recipe.model.classes, channels=recipe.model.channels)
    if not isinstance(model, LeNetConfig):
        stride = model.stride if isinstance(model, ViTConfig) else 1
        model = replace(model, image=tuple(max(side // stride, 1) * stride for side in recipe.model.image))
    how = recipe.data.preprocessing
    how = replace(how, size=model.image, resize=max(how.resize, *model.image) if how.resize else 0)
    return replace(recipe, model=model, data=replace(recipe.data, preprocessing=how))


def recipe(name: str) -> Recipe:
    """A recipe by its name, or by "file.py:function" from a file of one's own, which is run to get it.

    Raises ValueError, with the nearest name, when there is none.
    """
    file, colon, function = name.rpartition(":")
    if colon and file.endswith(".py"):
        if not Path(file).is_file():
            raise ValueError(f"no file {file!r} to take the recipe {function!r} from")
        found = runpy.run_path(file).get(function)
        made = found() if callable(found) else None
        if not isinstance(made, Recipe):
            raise ValueError(f"{function!r} in {file} is not a function that returns a vitkit Recipe")
        return made
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, 1)
        raise ValueError(
            f"no recipe {name!r}{f'; did you mean {near[0]!r}?' if near else ''} There are {', '.join(RECIPES)}, and "
            f"file.py:function for your own"
        )
    return RECIPES[name]()


__all__ = ["RECIPES", "recipe", "with_model"]
