"""Scaling of training compute: Vision Transformers, hybrids and ResNets, compared by their own
accuracy or by their accuracy on other data sets after fine-tuning (Figure 5 and Table 6, Section
4.4). A scaling law is fitted to each family."""

import math
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.apps.studies.base import check_square_patches, for_steps, measured_by, with_every_seed
from vitkit.apps.studies.drawing import curve, logarithmic, panels, titles
from vitkit.apps.studies.paper.scaling import answers, draw_runs, drawn, metrics_of, notes_about
from vitkit.apps.studies.protocol import Ask, PaperTable, Results, Study
from vitkit.apps.studies.targets import by_target, check_targets, on_every_target
from vitkit.apps.studies.uncertainty import cell_text
from vitkit.models import Backbone, ModelConfig, ResNetConfig, ViTConfig, exaflops, named
from vitkit.recipes import Recipe
from vitkit.system.errors import BadSettings
from vitkit.training import Cell
from vitkit.training.grids.rows import Setting

FAMILIES = ("ViT", "hybrid", "ResNet")
LENGTHS = (0.5, 1.0)  # relative lengths of the runs, like the paper's 7 and 14 epochs
ROOT = 4  # stride of a ResNet's root, in pixels
PAPER = ("the paper: average of 5", "the paper: ImageNet")  # the panels of Figure 5
SETTINGS = ("family", "model", "length", "exaflops")  # by which the runs are compared
TABLE_6 = {  # Table 6, by model and epochs: (exaFLOPs, average in percent, ImageNet in percent)
    "ViT": {
        ("B/32", 7): (55, 92.50, 80.73), ("L/32", 7): (196, 94.27, 84.37),
        ("B/16", 7): (224, 94.08, 84.15), ("L/16", 7): (783, 95.12, 86.30),
        ("L/16", 14): (1567, 95.44, 87.12), ("H/14", 14): (4262, 95.82, 88.08),
    },
    "hybrid": {
        ("R50x1+B/32", 7): (106, 94.27, 84.90), ("R50x1+L/32", 7): (246, 94.85, 85.68),
        ("R50x1+B/16", 7): (274, 94.68, 85.58), ("R50x1+L/16", 7): (859, 95.17, 86.60),
        ("R50x1+L/16", 14): (1668, 95.36, 87.12),
    },
    "ResNet": {
        ("R50x1", 7): (50, 89.33, 77.54), ("R101x1", 7): (96, 91.67, 80.67),
        ("R152x1", 7): (141, 92.41, 81.88), ("R50x2", 7): (199, 92.01, 82.12),
        ("R152x2", 7): (563, 94.01, 84.97), ("R152x2", 14): (1126, 94.24, 85.56),
        ("R200x3", 14): (3306, 95.09, 87.22),
    },
}  # fmt: skip


def _cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """The runs of every model of the three families at two lengths, with every seed; with targets, the
    fine-tuning of every run on each target too."""
    base = measured_by(ask.varied, ask.fewshot)
    runs = []
    for length in LENGTHS:
        recipe = for_steps(base, max(round(steps * length), 1))
        for (family, name), model in families(ask.vit).items():
            settings: dict[str, Setting] = {
                "family": family,
                "model": name,
                "length": length,
                "exaflops": exaflops(model, recipe.length.n * recipe.batch),
            }
            folder = f"{name.replace(' ', '-')}/length-{length:g}"
            runs.append(Cell(folder, replace(recipe, model=model), settings))
    grid = []
    for cell in with_every_seed(runs, ask.seeds):
        assert isinstance(cell.recipe, Recipe)
        tuned = replace(ask.varied, model=cell.recipe.model, evals=())
        grid.append(cell)
        grid += on_every_target(cell, tuned, ask.targets, steps, study_dir)
    return grid


def families(base: ViTConfig) -> dict[tuple[str, str], ModelConfig]:
    """Three Vision Transformers of sizes around the recipe's, two of them on one stage of a ResNet
    (hybrids), and three ResNets, by family and name."""
    vits = {"half": _scaled(base, 1), "base": _scaled(base, 2), "double": _scaled(base, 4)}
    stage = Backbone(units=(1,), width=0.5)
    patch = max(check_square_patches(base) // ROOT, 1)
    backbones = {
        "R5 x0.5": Backbone(units=(1, 1, 1), width=0.5),
        "R8 x0.5": Backbone(units=(2, 2, 2), width=0.5),
        "R5 x1": Backbone(units=(1, 1, 1), width=1.0),
    }
    family: dict[tuple[str, str], ModelConfig] = {
        ("ViT", f"ViT {name}"): model for name, model in vits.items()
    }
    for name in ("half", "base"):
        hybrid = replace(vits[name], stem=stage, patch=patch)
        family["hybrid", f"hybrid {name}"] = hybrid
    for name, backbone in backbones.items():
        family["ResNet", name] = ResNetConfig(backbone, image=base.image, classes=0)
    return family


def _scaled(base: ViTConfig, halves: int) -> ViTConfig:
    """The model with its width times halves / 2; the width of a head stays about the same."""
    width = base.width * halves // 2
    heads = max(base.heads * halves // 2, 1)
    while width % heads:
        heads -= 1
    return replace(base, width=width, mlp=base.mlp * halves // 2, heads=heads)


def _check(ask: Ask) -> None:
    """Raises VitkitError for a model that is not a plain Vision Transformer, for an image size that
    is not a multiple of the hybrids' stride, and as `check_targets` does."""
    check_targets(ask)
    model = ask.varied.model
    if not isinstance(model, ViTConfig) or model.stem is not None:
        raise BadSettings(
            "compute varies a Vision Transformer without a stem; give a `recipe` of one"
        )
    stride = max(check_square_patches(model) // ROOT, 1) * ROOT
    if any(side % stride for side in model.image):
        raise BadSettings(
            f"images of {model.image[0]} x {model.image[1]} cannot be cut by a hybrid's stride of {stride}"
        )


def _table(results: Results) -> PaperTable:
    """Table 6: models, their operations and accuracy, on each target if there are targets; and the
    paper's values."""
    on_each = by_target(results, *SETTINGS)
    rows = []
    for setting in dict.fromkeys(setting for runs in on_each.values() for setting in runs):
        family, name, length, spent = setting
        texts = []
        for runs in on_each.values():
            texts.append(cell_text(list(runs.get(setting, {}).values())))
        rows.append((family, name, f"{length:g}", f"{spent:.3g}", *texts, "", ""))
    blank = ("",) * len(on_each)
    for family, theirs in TABLE_6.items():
        for (name, epochs), (spent, *accuracies) in theirs.items():
            texts = [f"{accuracy:.2f}" for accuracy in accuracies]
            rows.append((family, name, f"{epochs} ep.", f"{spent:,}", *blank, *texts))
    here = [target or "accuracy" for target in on_each]
    columns = ("family", "model", "length", "exaFLOPs", *here, *PAPER)
    title = "Table 6: accuracy in percent, and operations of training"
    notes = notes_about(on_each, by_target(results, "model", "length"))
    return PaperTable(title, columns, rows, notes)


def _draw(results: Results) -> Figure:
    """Figure 5: the results here with their laws, and the paper's two panels."""
    panels_here = drawn(by_target(results, *SETTINGS))
    headings = ["here"]
    if results.ask.targets:
        headings = [f"here: {title}" for title in panels_here]
    rows = len(headings)  # 1, or 2 rows for an average and a target, as in the paper
    figure, every = panels([*headings, *PAPER], rows=rows)
    for axes, runs in zip(every, panels_here.values(), strict=False):
        draw_runs(axes, runs, FAMILIES, joined=False)
        logarithmic(axes)
        titles(axes, "exaFLOPs of training", metrics_of(runs))
    for column, axes in enumerate(every[len(headings) :], 1):
        for number, family in enumerate(FAMILIES):
            points = {row[0]: row[column] for row in TABLE_6[family].values()}
            curve(axes, points, family, number)
        logarithmic(axes)
        titles(axes, "exaFLOPs of pre-training", {})
        axes.set_ylabel("top1, %")
    return figure


def _predict(results: Results, question: str) -> list[str]:
    """The predicted accuracy of each family at a number of exaFLOPs; or that of a named model,
    trained on as many images as the longer runs. Raises VitkitError if `question` is neither."""
    try:
        spent = float(question)
        asked = list(FAMILIES)
    except ValueError:
        model = named(question)
        recipe = results.ask.varied
        model = model.resized(model.fitting(recipe.model.image))
        spent = exaflops(model, results.plan.steps * recipe.batch)
        asked = [_family(model)]
    if not 0 < spent < math.inf:
        raise BadSettings(f"`predict` is {question!r}; it is a number of exaFLOPs above 0")
    return answers(by_target(results, *SETTINGS), asked, spent, "exaFLOPs")


def _family(model: ModelConfig) -> str:
    """The family of a model."""
    if isinstance(model, ResNetConfig):
        return "ResNet"
    if getattr(model, "stem", None) is not None:
        return "hybrid"
    return "ViT"


COMPUTE: Study = Study(
    name="compute",
    summary="accuracy against the operations of training: ViT, hybrid, ResNet (Figure 5, Table 6)",
    measures=(
        "Three Vision Transformers, two hybrids and three ResNets, each trained for half of the "
        "length and for all of it; accuracy against the operations of their training. With `targets`, "
        "every run is fine-tuned on each of them, and its accuracy there counts, as in Figure 5: the "
        "average over all targets, and the first, which takes the place of ImageNet. A law, error "
        "= floor + scale times exaFLOPs to the power of -p, is fitted to each family; `predict` "
        "asks for the error at other exaFLOPs, or of a named model."
    ),
    found=(
        "Figure 5: Vision Transformers need two to four times less compute than ResNets for the "
        "same accuracy; hybrids are a little better at small compute, and the difference vanishes "
        "for larger models; nothing saturates yet."
    ),
    limits=(
        "The paper's ranking holds for large data sets. With a few thousand steps on a small set "
        "ResNets win, because their convolutions build in what a Vision Transformer has to learn; "
        "the slopes can be compared, but the order says nothing about JFT. All models have the "
        "same learning rate and schedule."
    ),
    cells=_cells,
    table=_table,
    draw=_draw,
    takes=("recipe", "fewshot", "targets", "seeds"),
    check=_check,
    predict=_predict,
)
