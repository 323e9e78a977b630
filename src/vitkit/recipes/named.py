"""The table of named recipes, which are functions that return a Recipe. The docstring of each gives the command,
its cost, and the measured accuracy.
"""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from textwrap import wrap

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig, named
from vitkit.recipes.later_papers import augregs, dino, mae, plain
from vitkit.recipes.paper import self_supervised, siblings, table_3, unprinted
from vitkit.recipes.segmenter import segmenter_b, segmenter_l
from vitkit.recipes.settings import Recipe
from vitkit.recipes.small import (
    cifar10,
    cifar10_laptop,
    cifar10_masked_laptop,
    digits,
    scratch,
    tiny_imagenet,
)
from vitkit.system.console.text import fill, quoted, terminal_width, two_columns
from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.scripts import function_in
from vitkit.system.values import given
from vitkit.weights import over_patches, preprocessing_for_channels

RECIPES: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar10-laptop": cifar10_laptop,
    "cifar10-masked-laptop": cifar10_masked_laptop,
    "tiny-imagenet": tiny_imagenet,
    "scratch": scratch,
    **table_3(),
    **unprinted(),
    **siblings(),
    **self_supervised(),
    **augregs(),
    "plain.S16": plain,
    "mae.B16": mae,
    "dino.S16": dino,
    "segmenter.B16": segmenter_b,
    "segmenter.L16": segmenter_l,
}
"""The recipes that `vitkit train` lists."""

TABLES = {
    "paper.": "Table 3, Appendix B.1.2, and runs of Tables 5, 6 and Figure 8 without a row there",
    "sibling.": "rows of Table 3 with the values that the authors published in code",
    "augreg.": "AugReg's 28 settings",
}
"""Titles of groups of recipes in the list, by the prefix of their names."""

CARRIED = ("classes", "channels", "dropout", "attention_dropout", "stochastic_depth", "head_bias")
"""Settings of a recipe's model that a replacement model inherits."""


def listing() -> str:
    """The list of all names as text: each with the first line of its docstring, and those of TABLES in
    groups."""
    rows = []
    for name, make in RECIPES.items():
        if not name.startswith(tuple(TABLES)):
            first_line = (make.__doc__ or "").splitlines()[0]
            _, _, sentence = first_line.partition("`: ")  # after `vitkit train NAME`
            rows.append((name, sentence or first_line))
    lines = two_columns(rows)
    width = min(terminal_width(), 100)
    indent = " " * 6
    for prefix, title in TABLES.items():
        names = [name.removeprefix(prefix) for name in RECIPES if name.startswith(prefix)]
        title = f"{prefix}NAME: {title}"
        lines += wrap(title, width, initial_indent="  ", subsequent_indent=indent)
        lines += wrap(" ".join(names), width, initial_indent=indent, subsequent_indent=indent)
    lines += ["", fill("All but digits read the images that `data.source` gives.")]
    return "\n".join(lines)


def with_model(recipe: Recipe, name: str) -> Recipe:
    """The recipe with a named model instead of its own: `with_model(cifar10(), "BiT-R50x1")`.

    The new model classifies pixels if the recipe's does. It inherits the recipe's classes and channels; dropout,
    stochastic depth, head bias and hidden layer before the head, if it supports them; and the image size, or the
    next smaller one that its stride divides.
    """
    # The settings that both models have
    before = recipe.model
    model = named(name)
    carried = {}
    for setting in CARRIED:
        if hasattr(model, setting) and hasattr(before, setting):
            carried[setting] = getattr(before, setting)
    if before.channels == 3:  # the default of most models; LeNet-5 keeps its single channel
        carried.pop("channels", None)
    model = replace(model, **carried)
    if isinstance(model, ViTConfig) and isinstance(before, ViTConfig) and before.representation:
        model = replace(model, representation=model.width)  # the hidden layer has the model's width

    if isinstance(before, ViTConfig) and before.segments:
        if not isinstance(model, ViTConfig):
            raise BadSettings(
                f"a {model.title} cannot classify pixels; give a plain Vision Transformer"
            )
        model = replace(over_patches(model, before.read_blocks), gelu=before.gelu)

    # The image size, of the model and of the preprocessing
    model = model.resized(model.fitting(before.image))
    preprocessing = preprocessing_for_channels(recipe.data.preprocessing, model.channels)
    if preprocessing.is_native and isinstance(model, ViTConfig):
        preprocessing = with_patches_of(preprocessing, model)
    else:
        preprocessing = replace(preprocessing, size=model.image)
    if preprocessing.resize:
        resize = max(preprocessing.resize, *model.image)
        preprocessing = replace(preprocessing, resize=resize)
    return replace(recipe, model=model, data=replace(recipe.data, preprocessing=preprocessing))


def with_patches_of(preprocessing: Preprocessing, model: ViTConfig) -> Preprocessing:
    """A preprocessing that keeps the images' proportions, with about as many pixels in patches of a model."""
    height, width = model.tiling.size
    rows = max(1, preprocessing.size[0] // height)
    columns = max(1, preprocessing.size[1] // width)
    size = (rows * height, columns * width)
    return replace(preprocessing, size=size, patch=model.tiling.size)


def recipe(name: str) -> Recipe:
    """The recipe of a name, or of "file.py:function", a function in the user's own file, which is called. The
    name must come from the user, not from a file.

    Raises VitkitError, with the nearest names, if there is no recipe of this name.
    """
    if not isinstance(name, str):
        raise WrongArgument(
            f"the recipe is {given(name)}; it is the name of one, 'file.py:function' or a Recipe"
        )

    # A function in a user's own file
    function = function_in(name, typed=True)
    if function is not None:
        result = function()
        if not isinstance(result, Recipe):
            raise BadSettings(
                f"{name} returns a {type(result).__name__}; it must return a vitkit Recipe"
            )
        return result

    # One of vitkit's recipes
    if name in RECIPES:
        return RECIPES[name]()
    similar = get_close_matches(name, RECIPES, 2)
    question = "."
    if similar:
        question = f"; did you mean {', '.join(similar)}?"
    raise BadSettings(
        f"no recipe {quoted(name)}{question} `vitkit train` lists them, and file.py:function is for your "
        "own"
    )
