"""The architecture of a Transformer: depth, width, MLP width and patch size, one at a time and together
(Figure 8, Appendix D.2), and axial attention (Figure 13, Appendix D.6)."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.apps.studies.base import check_square_patches, for_steps, measured_by, with_every_seed
from vitkit.apps.studies.drawing import axis_title, legend, line, logarithmic, panels, titles
from vitkit.apps.studies.protocol import Ask, PaperTable, Results, Study
from vitkit.apps.studies.throughput import Speed
from vitkit.apps.studies.uncertainty import best_and_worst, cell_text
from vitkit.models import Backbone, ModelConfig, ResNetConfig, ViTConfig, cost, exaflops
from vitkit.system.errors import BadSettings
from vitkit.training import Cell
from vitkit.training.grids.rows import Setting

# Shape

FACTORS = (0.5, 2.0)
TOGETHER = 1.5  # factor for scaling all dimensions together; 2 would cost eight times as much
BASE = "base"
VARIED = ("depth", "width", "MLP width", "patch size", "all")
FIGURE_8 = {  # findings of Figure 8, around 8 layers, D 1024, D_MLP 2048 and patches of 32; there is no table
    "depth": "gains most, up to 64 layers; less from 16 layers on",
    "width": "changes least",
    "MLP width": "changes little",
    "patch size": "smaller patches gain without parameters",
    "all": "gains steadily",
}


def _shape_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """The runs of the base model and of each shape, with every seed."""
    recipe = for_steps(measured_by(ask.varied, ask.fewshot), steps)
    whole = cost(recipe.model).macs
    runs = []
    for (varied, factor), model in _shapes(ask.vit).items():
        compute = round(cost(model).macs / whole, 3)
        settings: dict[str, Setting] = {"varied": varied, "factor": factor, "compute": compute}
        folder = f"{varied.replace(' ', '-')}-{factor:g}"
        runs.append(Cell(folder, replace(recipe, model=model), settings))
    return with_every_seed(runs, ask.seeds)


def _shapes(base: ViTConfig) -> dict[tuple[str, float], ViTConfig]:
    """The base model and its variations, by the varied dimension and its factor."""
    found = {(BASE, 1.0): base}
    for factor in FACTORS:
        depth = max(round(base.depth * factor), 1)
        width = round(base.width * factor)
        heads = _heads(width, max(round(base.heads * factor), 1))
        found["depth", factor] = replace(base, depth=depth)
        found["width", factor] = replace(base, width=width, heads=heads)
        found["MLP width", factor] = replace(base, mlp=round(base.mlp * factor))
        patch = round(check_square_patches(base) / factor)
        if patch >= 1 and not any(side % patch for side in base.image):
            found["patch size", factor] = replace(base, patch=patch)
    width = round(base.width * TOGETHER)
    found["all", TOGETHER] = replace(
        base,
        depth=max(round(base.depth * TOGETHER), 1),
        width=width,
        mlp=round(base.mlp * TOGETHER),
        heads=_heads(width, base.heads),
    )
    return found


def _heads(width: int, most: int) -> int:
    """The largest number of heads, up to `most`, that divides a width."""
    while width % most:
        most -= 1
    return most


def _shape_check(ask: Ask) -> None:
    """Raises VitkitError for a model other than a Vision Transformer."""
    if not isinstance(ask.varied.model, ViTConfig):
        raise BadSettings("shape varies a Vision Transformer; give a `recipe` of one")
    check_square_patches(ask.varied.model)


def _shape_table(results: Results) -> PaperTable:
    """Accuracy and compute of every shape."""
    groups = results.group("varied", "factor", "compute")
    rows = []
    for (varied, factor, compute), metrics in groups.items():
        paper = FIGURE_8.get(varied, "")
        rows.append((varied, f"x{factor:g}", f"{compute:.2f}", cell_text(metrics), paper))
    columns = ("varied", "factor", "relative compute", "here, %", "Figure 8")
    notes = best_and_worst(results.by_seed("varied", "factor"))
    return PaperTable("Figure 8: shapes of a Transformer", columns, rows, notes)


def _shape_draw(results: Results) -> Figure:
    """Figure 8: accuracy against relative compute; all lines go through the base."""
    figure, (axes,) = panels(("accuracy against relative compute",))
    groups = results.group("varied", "factor", "compute")
    base = {1.0: groups.get((BASE, 1.0, 1.0), [])}
    for number, name in enumerate(VARIED):
        points = {x: values for (varied, _, x), values in groups.items() if varied == name}
        line(axes, base | points, name, number)
    logarithmic(axes)
    titles(axes, "compute relative to the base", groups)
    return figure


SHAPE: Study = Study(
    name="shape",
    summary="depth, width, MLP width and patch size, one at a time (Figure 8)",
    measures=(
        "The recipe's model with half and twice its depth, its width, its MLP width and its number "
        "of tokens along a side, and with all of them increased by half; accuracy against relative "
        "compute."
    ),
    found=(
        "Figure 8: depth helps most, up to 64 layers, though less from 16 layers on; width changes "
        "least; smaller patches help without more parameters; scaling all dimensions together "
        "helps steadily."
    ),
    limits=(
        "All models train for the same number of steps, so deep and wide models are undertrained "
        "for their size, and a short run favours small models. The paper's lines span a factor of "
        "ten in compute, these about four."
    ),
    cells=_shape_cells,
    table=_shape_table,
    draw=_shape_draw,
    check=_shape_check,
)


# Axial attention

UNITS = (1, 1, 1)
FIGURE_13 = {  # findings of Figure 13, which has no table
    "Axial-ViT": "better than ViT at either patch size, at more operations",
    "ViT": "the fastest",
    "Axial-ResNet": "good by operations, very slow",
    "ResNet": "the baseline",
}


def _axial_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A measurement of the speed of every model, and the runs of each with every seed."""
    recipe = for_steps(measured_by(ask.varied, ask.fewshot), steps)
    speeds = []
    runs = []
    for name, model in _axial_models(ask.vit).items():
        folder = name.replace(" ", "-")
        speeds.append(Cell(f"{folder}/speed", Speed(model), {"speed of": name}))
        spent = exaflops(model, recipe.length.n * recipe.batch)
        settings: dict[str, Setting] = {"model": name, "exaflops": spent}
        runs.append(Cell(folder, replace(recipe, model=model), settings))
    return speeds + with_every_seed(runs, ask.seeds)


def _axial_models(base: ViTConfig) -> dict[str, ModelConfig]:
    """The recipe's model at its own and at twice its patch size, both also with axial attention, and two
    ResNets. An axial block counts as two blocks, as in the paper."""
    found: dict[str, ModelConfig] = {}
    side = check_square_patches(base)
    for patch in (side, 2 * side):
        if any(pixels % patch for pixels in base.image):
            continue
        vit = replace(base, patch=patch)
        found[f"ViT/{patch}"] = vit
        found[f"Axial-ViT/{patch}"] = replace(vit, mixer="axial", pool="gap")
    for name, backbone in {
        "ResNet": Backbone(units=UNITS),
        "Axial-ResNet": Backbone(units=UNITS, mixer="axial"),
    }.items():
        found[name] = ResNetConfig(backbone, image=base.image, classes=0)
    return found


def _axial_check(ask: Ask) -> None:
    """Raises VitkitError for a model that has no axial variant."""
    model = ask.varied.model
    if not isinstance(model, ViTConfig):
        raise BadSettings("axial varies a Vision Transformer; give a `recipe` of one")
    check_square_patches(model)
    replace(model, mixer="axial", pool="gap")


def _axial_table(results: Results) -> PaperTable:
    """Accuracy, operations and speed of every model."""
    speeds = _speeds(results)
    groups = results.group("model", "exaflops")
    rows = []
    for (name, spent), metrics in groups.items():
        speed = "–"
        if name in speeds:
            speed = f"{speeds[name]:,.0f}"
        paper = FIGURE_13[name.partition("/")[0]]
        rows.append((name, cell_text(metrics), f"{spent:.3g}", speed, paper))
    columns = ("model", "here, %", "exaFLOPs", "images/s", "Figure 13")
    notes = best_and_worst(results.by_seed("model"))
    return PaperTable("Figure 13: axial attention", columns, rows, notes)


def _speeds(results: Results) -> dict[str, float]:
    """Images per second by model."""
    return {name: metrics[0].value for (name,), metrics in results.group("speed of").items()}


def _axial_draw(results: Results) -> Figure:
    """Both panels of Figure 13."""
    figure, (left, right) = panels(("by operations", "by speed of inference"))
    speeds = _speeds(results)
    groups = results.group("model", "exaflops")
    for number, ((name, spent), metrics) in enumerate(groups.items()):
        line(left, {spent: metrics}, name, number)
        if name in speeds:
            line(right, {speeds[name]: metrics}, name, number)
    for axes, title in ((left, "exaFLOPs of training"), (right, "images per second")):
        logarithmic(axes)
        axes.set_xlabel(title)
        axes.set_ylabel(axis_title(groups))
    legend(left)
    return figure


AXIAL: Study = Study(
    name="axial",
    summary="axial attention: accuracy by operations and by speed (Figure 13)",
    measures=(
        "The recipe's Vision Transformer at its own and at twice its patch size, and a ResNet, "
        "each with and without axial attention; accuracy against the operations of training, and "
        "against the images per second of inference."
    ),
    found=(
        "Figure 13: Axial-ViT-B/32 and B/16 are better than their counterparts, at more "
        "operations, because each of their layers has two blocks; AxialResNet50 does well by "
        "operations and is very slow in practice."
    ),
    limits=(
        "Axial models have twice as many blocks, so part of a gain comes from depth; and with an 8 "
        "x 8 grid axial attention saves little. Speeds are those of this machine, including "
        "whatever else it does meanwhile."
    ),
    cells=_axial_cells,
    table=_axial_table,
    draw=_axial_draw,
    check=_axial_check,
)
