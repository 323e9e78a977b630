"""Figure 9 (Appendix D.3): the class token beside the mean of the patches, and its learning rate."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.models import ViTConfig
from vitkit.studies.base import for_steps, measured_by, with_shape
from vitkit.studies.cell import Cell
from vitkit.studies.drawing import axis_title, legend, line, panels
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.study import Study

EVALUATIONS = 7  # the paper's epochs
LOWER = 3 / 8  # the paper's 3e-4, of its 8e-4
KINDS = {  # what the head reads, and the rate as a share of the recipe's
    "class token": ("token", 1.0),
    "mean of the patches": ("gap", 1.0),
    "mean of the patches, lower rate": ("gap", LOWER),
    "class token, lower rate": ("token", LOWER),  # not in the paper: the same change for both
}
PAPER = {  # what Figure 9 shows; it has no table
    "class token": "works (8e-4)",
    "mean of the patches": "well below the token (8e-4)",
    "mean of the patches, lower rate": "as good as the token (3e-4)",
    "class token, lower rate": "not tried",
}


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of both poolings at both rates with every seed, measured seven times."""
    grid = []
    recipe = for_steps(measured_by(ask.recipe, ask.fewshot), steps, EVALUATIONS)
    for seed in range(ask.seeds):
        for kind, (pool, share) in KINDS.items():
            changed = with_shape(recipe, pool=pool)
            rate = recipe.optim.lr * share
            changed = replace(changed, optim=replace(recipe.optim, lr=rate), seed=seed)
            name = f"{pool}-lr-{rate:g}/seed-{seed}"
            grid.append(Cell(name, changed, {"pooling": kind, "lr": rate, "seed": seed}))
    return grid


def check(ask: Ask) -> None:
    """Raises ValueError for a model without a class token to compare with."""
    model = ask.recipe.model
    if not isinstance(model, ViTConfig) or model.mixer == "axial":
        raise ValueError("pooling compares a class token, which this --recipe's model cannot have")


def table(results: Results) -> Table:
    """What each reached in the end."""
    groups = results.group("pooling", "lr")
    rows = []
    for (kind, rate), metrics in groups.items():
        rows.append((kind, f"{rate:g}", cell_text(metrics), PAPER[kind]))
    columns = ("the head reads", "learning rate", "here, %", "Figure 9")
    return Table(
        "Figure 9: class token and mean pooling", columns, rows, noise(list(groups.values()))
    )


def draw(results: Results) -> Figure:
    """The curves of Figure 9."""
    figure, (axes,) = panels(("class token and mean of the patches",))
    metrics = []
    for number, (kind, rate) in enumerate(results.group("pooling", "lr")):
        curve = results.curve(pooling=kind)
        metrics = next(iter(curve.values()), metrics)
        line(axes, curve, f"{kind}, {rate:g}", number)
    axes.set_xlabel("steps")
    axes.set_ylabel(axis_title(metrics))
    legend(axes)
    return figure


STUDY = Study(
    name="pooling",
    summary="class token or mean of the patches, at two learning rates (Figure 9)",
    measures=(
        "The class token and the mean of the patches before the head, each at the recipe's learning rate "
        "and at 3/8 of it, measured seven times on the way."
    ),
    found=(
        "Figure 9: the mean of the patches seemed to be worse than the class token, and is as good with a "
        "learning rate of 3e-4 instead of 8e-4: each has its own."
    ),
    limits=(
        "Which rate is best depends on the length of the run: with a small budget higher rates win, as they "
        "learn faster, and the paper's finding need not show. Two rates are no search; for one, take "
        "vitkit finetune --rates, or recipes of your own."
    ),
    cells=cells,
    table=table,
    draw=draw,
    check=check,
)
