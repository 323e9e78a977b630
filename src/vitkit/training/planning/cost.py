"""What a training costs in floating-point operations."""

from vitkit.models import exaflops
from vitkit.objectives import Supervised
from vitkit.training.recipe import Recipe
from vitkit.training.tune import Tune


def operations(recipe: Recipe, images: float) -> float:
    """Operations of a resolved recipe's model for so many images, in units of 10^18, counted as in
    Table 6.

    Those of plain supervised training are a formula; others are counted relative to them, which takes
    a second. Raises ValueError for an objective that looks at the values of tensors.
    """
    plain = exaflops(recipe.model, images)
    if isinstance(recipe.objective, Supervised) and recipe.tune == Tune():
        return plain
    from vitkit.training.planning.memory import relative_flops  # and with it PyTorch's fake tensors

    return plain * relative_flops(recipe)
