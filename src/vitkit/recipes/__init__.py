"""Recipes: data about training, as functions that return a Recipe. A docstring says the command, its cost, what it reached."""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from textwrap import wrap

from vitkit.models import LeNetConfig, ViTConfig, named
from vitkit.recipes.later import augregs, dino, mae, plain
from vitkit.recipes.paper import self_supervised, siblings, table_3
from vitkit.recipes.small import (
    cifar10,
    cifar10_laptop,
    cifar10_masked_laptop,
    digits,
    scratch,
    tiny_imagenet,
)
from vitkit.system.scripts import function_in
from vitkit.train import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar10-laptop": cifar10_laptop,
    "cifar10-masked-laptop": cifar10_masked_laptop,
    "tiny-imagenet": tiny_imagenet,
    "scratch": scratch,
    **table_3(),
    **siblings(),
    **self_supervised(),
    **augregs(),
    "plain.S16": plain,
    "mae.B16": mae,
    "dino.S16": dino,
}


def listing() -> str:
    """Every name, for people: those of a table in a few lines, the others each with what it is."""
    tables = (
        ("paper.", "Table 3, and Appendix B.1.2"),
        ("sibling.", "the group's own values, where they differ"),
    )
    tables += (("augreg.", "AugReg's 28 settings"),)
    lines = []
    for prefix, what in tables:
        names = " ".join(name.removeprefix(prefix) for name in RECIPES if name.startswith(prefix))
        lines += [
            f"  {prefix}NAME: {what}",
            *wrap(names, 100, initial_indent=" " * 6, subsequent_indent=" " * 6),
        ]
    alone = [name for name in RECIPES if not name.startswith(tuple(prefix for prefix, _ in tables))]
    return "\n".join(
        [*(f"  {n:24}{(RECIPES[n].__doc__ or '').splitlines()[0]}" for n in alone), *lines]
    )


CARRIED = ("classes", "channels", "dropout", "attention_dropout", "stochastic_depth", "head_bias")


def with_model(recipe: Recipe, name: str) -> Recipe:
    """The same training of a named model: `with_model(cifar10(), "BiT-R50x1")`, with the recipe's classes and channels, and
    its dropout, stochastic depth, head bias and hidden layer where the model has them.

    Images keep the recipe's size, or, where the model cannot cut that, take the multiple of its stride just below.
    """
    model = named(name)
    kept = {name: getattr(recipe.model, name, None) for name in CARRIED if hasattr(model, name)}
    model = replace(model, **{name: value for name, value in kept.items() if value is not None})
    if isinstance(model, ViTConfig) and getattr(recipe.model, "representation", 0):
        model = replace(model, representation=model.width)
    if not isinstance(model, LeNetConfig):
        stride = model.stride if isinstance(model, ViTConfig) else 1
        model = replace(
            model, image=tuple(max(side // stride, 1) * stride for side in recipe.model.image)
        )
    how = recipe.data.preprocessing
    how = replace(how, size=model.image, resize=max(how.resize, *model.image) if how.resize else 0)
    return replace(recipe, model=model, data=replace(recipe.data, preprocessing=how))


def recipe(name: str) -> Recipe:
    """A recipe by its name, or by "file.py:function" from a file of one's own, which is run to get it.

    Raises ValueError, with the nearest name, when there is none.
    """
    function = function_in(name)
    if function is not None:
        made = function()
        if not isinstance(made, Recipe):
            raise ValueError(f"{name} returns a {type(made).__name__}, and not a vitkit Recipe")
        return made
    if name not in RECIPES:
        near = ", ".join(get_close_matches(name, RECIPES, 2))
        raise ValueError(
            f"no recipe {name!r}{f'; did you mean {near}?' if near else '.'} `vitkit train` lists them, and "
            f"file.py:function is for your own"
        )
    return RECIPES[name]()


__all__ = ["RECIPES", "listing", "recipe", "with_model"]
