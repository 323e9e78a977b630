"""Weight decay, dropout and label smoothing, chosen on held-out images: what the paper does for its
smaller pre-training sets (Section 4.3, Figure 3).

The paper does not state which values it tried. These are those of its Table 3, with and without label
smoothing.
"""

from dataclasses import dataclass, fields, replace
from itertools import product

from vitkit.objectives import Supervised
from vitkit.studies.rows import Setting
from vitkit.training import Recipe


@dataclass(frozen=True)
class Regularisation:
    """Values to choose from; of an empty one the recipe's own is kept."""

    weight_decays: tuple[float, ...] = ()
    """Of the optimiser's `weight_decay`."""
    dropouts: tuple[float, ...] = ()
    """Of the model's `dropout`; a ResNet has none."""
    label_smoothings: tuple[float, ...] = ()
    """Of the objective's `label_smoothing`."""

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


USUAL = Regularisation((0.03, 0.1, 0.3), (0.0, 0.1), (0.0, 0.1))
"""Table 3: weight decay 0.03 on ImageNet-21k, 0.1 on JFT and 0.3 on ImageNet, dropout 0.1 or none."""


def regularised(recipe: Recipe, values: Regularisation) -> list[Recipe]:
    """The recipe as it is, then with every combination of the values that is another. A model without
    dropout, and an objective without label smoothing, have no part in it.

    Raises ValueError for a value outside of its range, for dropouts of a model that has none, for label
    smoothing without labels, and for values that are all the recipe's own.
    """
    if values != USUAL and values.dropouts and not hasattr(recipe.model, "dropout"):
        raise ValueError(
            f"--dropouts are given, and a {type(recipe.model).__name__} has no dropout; leave them out"
        )
    if values != USUAL and values.label_smoothings and not _is_of_classes(recipe):
        raise ValueError(
            "--label-smoothings are given, and the objective has no classes to smooth; leave them out"
        )
    recipes = [recipe]
    decays = values.weight_decays or (recipe.optim.weight_decay,)
    dropouts = (None,)
    if hasattr(recipe.model, "dropout"):
        dropouts = values.dropouts or (recipe.model.dropout,)
    smoothings = (None,)
    if _is_of_classes(recipe):
        smoothings = values.label_smoothings or (recipe.objective.label_smoothing,)
    for decay, dropout, smoothing in product(decays, dropouts, smoothings):
        changed = replace(recipe, optim=replace(recipe.optim, weight_decay=decay))
        if dropout is not None:
            changed = replace(changed, model=replace(recipe.model, dropout=dropout))
        if smoothing is not None:
            objective = replace(recipe.objective, label_smoothing=smoothing)
            changed = replace(changed, objective=objective)
        if changed not in recipes:
            recipes.append(changed)
    if len(recipes) == 1:
        raise ValueError(
            f"there is nothing to choose from: the recipe has {regularisation_text(regularisation_of(recipe))}"
            " as it is; give another value"
        )
    return recipes


def regularisation_of(recipe: Recipe) -> dict[str, Setting]:
    """How a recipe is regularised: columns of a table."""
    settings = {"weight decay": recipe.optim.weight_decay}
    if hasattr(recipe.model, "dropout"):
        settings["dropout"] = recipe.model.dropout
    if _is_of_classes(recipe):
        settings["label smoothing"] = recipe.objective.label_smoothing
    return settings


def _is_of_classes(recipe: Recipe) -> bool:
    """Whether the objective has a target that label smoothing can spread."""
    return isinstance(recipe.objective, Supervised) and recipe.objective.loss != "squared"


def regularisation_text(settings: dict[str, Setting]) -> str:
    """The same for people: "weight decay 0.1, dropout 0, label smoothing 0.1"."""
    return ", ".join(f"{name} {value:g}" for name, value in settings.items())


def folder_of(settings: dict[str, Setting]) -> str:
    """The same as the name of a directory: "decay-0.1-dropout-0-smoothing-0.1"."""
    return "-".join(f"{name.split()[-1]}-{value:g}" for name, value in settings.items())
