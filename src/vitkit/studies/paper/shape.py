"""Figure 8 (Appendix D.2): depth, width, MLP width and patch size, one at a time and together."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.models import ViTConfig, cost
from vitkit.studies.base import check_square_patches, for_steps, measured_by
from vitkit.studies.cell import Cell
from vitkit.studies.drawing import axis_title, legend, line, logarithmic, panels
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.study import Study

FACTORS = (0.5, 2.0)
BASE = "base"
VARIED = ("depth", "width", "MLP width", "patch size", "all")
PAPER = {  # what Figure 8 shows, around 8 layers, D 1024, D_MLP 2048 and patches of 32; no table
    "depth": "gains most, up to 64 layers; less from 16 layers on",
    "width": "changes least",
    "MLP width": "changes little",
    "patch size": "smaller patches gain without parameters",
    "all": "gains steadily",
}


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of the base, and of each shape with every seed."""
    grid = []
    recipe = for_steps(measured_by(ask.recipe, ask.fewshot), steps)
    whole = cost(recipe.model).macs
    for seed in range(ask.seeds):
        for (varied, factor), model in shapes(ask.recipe.model).items():
            settings = {
                "varied": varied,
                "factor": factor,
                "compute": round(cost(model).macs / whole, 3),
                "seed": seed,
            }
            folder = f"{varied.replace(' ', '-')}-{factor:g}/seed-{seed}"
            grid.append(Cell(folder, replace(recipe, model=model, seed=seed), settings))
    return grid


def shapes(base: ViTConfig) -> dict[tuple[str, float], ViTConfig]:
    """The base and its variations, by what is varied and how. A factor of the patch size is that of
    the tokens along a side."""
    found = {(BASE, 1.0): base}
    for factor in FACTORS:
        depth = max(round(base.depth * factor), 1)
        width = round(base.width * factor)
        mlp = round(base.mlp * factor)
        heads = max(round(base.heads * factor), 1)
        while width % heads:
            heads -= 1
        found["depth", factor] = replace(base, depth=depth)
        found["width", factor] = replace(base, width=width, heads=heads)
        found["MLP width", factor] = replace(base, mlp=mlp)
        patch = round(base.patch / factor)
        if patch >= 1 and not any(side % patch for side in base.image):
            found["patch size", factor] = replace(base, patch=patch)
    # All together: by half the factor, for its cost grows with its third power
    factor = 1.5
    width = round(base.width * factor)
    heads = base.heads
    while width % heads:
        heads -= 1
    found["all", factor] = replace(
        base,
        depth=max(round(base.depth * factor), 1),
        width=width,
        mlp=round(base.mlp * factor),
        heads=heads,
    )
    return found


def check(ask: Ask) -> None:
    """Raises ValueError for a model without such a shape."""
    if not isinstance(ask.recipe.model, ViTConfig):
        raise ValueError("shape varies a Vision Transformer; give a --recipe of one")
    check_square_patches(ask.recipe.model)


def table(results: Results) -> Table:
    """Accuracy and compute of every shape."""
    groups = results.group("varied", "factor", "compute")
    rows = []
    for (varied, factor, compute), metrics in groups.items():
        rows.append(
            (varied, f"x{factor:g}", f"{compute:.2f}", cell_text(metrics), PAPER.get(varied, ""))
        )
    columns = ("varied", "factor", "relative compute", "here, %", "Figure 8")
    return Table(
        "Figure 8: shapes of a Transformer", columns, rows, noise(list(groups.values()))[:1]
    )


def draw(results: Results) -> Figure:
    """Figure 8: accuracy against relative compute; all lines go through the base."""
    figure, (axes,) = panels(("accuracy against relative compute",))
    groups = results.group("varied", "factor", "compute")
    base = {1.0: groups.get((BASE, 1.0, 1.0), [])}
    for number, name in enumerate(VARIED):
        points = {x: values for (varied, _, x), values in groups.items() if varied == name}
        line(axes, base | points, name, number)
    logarithmic(axes)
    axes.set_xlabel("compute relative to the base")
    axes.set_ylabel(axis_title(next(iter(groups.values()), [])))
    legend(axes)
    return figure


STUDY = Study(
    name="shape",
    summary="depth, width, MLP width and patch size, one at a time (Figure 8)",
    measures=(
        "The recipe's model with half and twice its depth, its width, its MLP's width and its tokens along a "
        "side, and with all of them half as large again; accuracy against relative compute."
    ),
    found=(
        "Figure 8: depth gains most, up to 64 layers, though less from 16 on; width changes least; smaller "
        "patches gain without more parameters; growing all dimensions together gains steadily."
    ),
    limits=(
        "With the same number of steps for all, deep and wide models are trained less far for their size, so "
        "that a short run favours small ones. The paper's lines span a factor of ten in compute, these about "
        "four."
    ),
    cells=cells,
    table=table,
    draw=draw,
    check=check,
)
