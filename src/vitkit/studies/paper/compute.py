"""Figure 5 and Table 6 (Section 4.4): accuracy against the operations of training, for Vision
Transformers, hybrids and ResNets."""

import math
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.models import Backbone, ModelConfig, ResNetConfig, ViTConfig, exaflops, named
from vitkit.studies.base import check_square_patches, for_steps, measured_by
from vitkit.studies.cell import Cell
from vitkit.studies.drawing import axis_title, curve, law, legend, line, logarithmic, panels
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.scaling import Fit, answer, fit, law_text
from vitkit.studies.study import Study

FAMILIES = ("ViT", "hybrid", "ResNet")
LENGTHS = (0.5, 1.0)  # of the runs: the paper's 7 and 14 epochs
ROOT = 4  # the stride of a ResNet's root, in pixels
PAPER = {  # Table 6: (exaFLOPs, mean of ImageNet, CIFAR-10, CIFAR-100, Pets and Flowers in percent)
    "ViT": {
        "B/32": (55, 92.50), "L/32": (196, 94.27), "B/16": (224, 94.08), "L/16": (783, 95.12),
        "L/16, 14 epochs": (1567, 95.44), "H/14, 14 epochs": (4262, 95.82),
    },
    "hybrid": {
        "R50x1+B/32": (106, 94.27), "R50x1+L/32": (246, 94.85), "R50x1+B/16": (274, 94.68),
        "R50x1+L/16": (859, 95.17), "R50x1+L/16, 14 epochs": (1668, 95.36),
    },
    "ResNet": {
        "R50x1": (50, 89.33), "R101x1": (96, 91.67), "R152x1": (141, 92.41), "R50x2": (199, 92.01),
        "R152x2": (563, 94.01), "R152x2, 14 epochs": (1126, 94.24), "R200x3, 14 epochs": (3306, 95.09),
    },
}  # fmt: skip


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of every model of the three families, of two lengths, with every seed."""
    grid = []
    base = measured_by(ask.recipe, ask.fewshot)
    for seed in range(ask.seeds):
        for length in LENGTHS:
            recipe = for_steps(base, max(round(steps * length), 1))
            for (family, name), model in models(ask.recipe.model).items():
                images = recipe.length.n * recipe.batch
                settings = {
                    "family": family,
                    "model": name,
                    "length": length,
                    "exaflops": exaflops(model, images),
                    "seed": seed,
                }
                folder = f"{name.replace(' ', '-')}/length-{length:g}/seed-{seed}"
                changed = replace(recipe, model=model, seed=seed)
                grid.append(Cell(folder, changed, settings))
    return grid


def models(base: ViTConfig) -> dict[tuple[str, str], ModelConfig]:
    """Three Vision Transformers around the recipe's, two of them on one stage of a ResNet, and three
    ResNets, by family and name."""
    vits = {"half": _scaled(base, 1), "base": _scaled(base, 2), "double": _scaled(base, 4)}
    stage = Backbone(units=(1,), width=0.5)
    patch = max(base.patch // ROOT, 1)
    backbones = {
        "R5 x0.5": Backbone(units=(1, 1, 1), width=0.5),
        "R8 x0.5": Backbone(units=(2, 2, 2), width=0.5),
        "R5 x1": Backbone(units=(1, 1, 1), width=1.0),
    }
    family = {("ViT", f"ViT {name}"): model for name, model in vits.items()}
    for name in ("half", "base"):
        hybrid = replace(vits[name], stem=stage, patch=patch)
        family["hybrid", f"hybrid {name}"] = hybrid
    for name, backbone in backbones.items():
        family["ResNet", name] = ResNetConfig(backbone, image=base.image, classes=0)
    return family


def _scaled(base: ViTConfig, halves: int) -> ViTConfig:
    """The model with so many halves of its width; a head stays as wide as it is, or nearly."""
    width = base.width * halves // 2
    heads = max(base.heads * halves // 2, 1)
    while width % heads:
        heads -= 1
    return replace(base, width=width, mlp=base.mlp * halves // 2, heads=heads)


def check(ask: Ask) -> None:
    """Raises ValueError for a model that is no plain Vision Transformer of images of 4 n pixels."""
    model = ask.recipe.model
    if not isinstance(model, ViTConfig) or model.stem is not None:
        raise ValueError(
            "compute varies a Vision Transformer without a stem; give a --recipe of one"
        )
    check_square_patches(model)
    stride = max(model.patch // ROOT, 1) * ROOT
    if any(side % stride for side in model.image):
        raise ValueError(
            f"images of {model.image[0]} x {model.image[1]} cannot be cut by a hybrid's stride of {stride}"
        )


def fits(results: Results) -> dict[str, Fit | None]:
    """The law of each family: its error against exaFLOPs."""
    points: dict[str, dict[float, list[float]]] = {}
    for (family, spent), metrics in results.group("family", "exaflops").items():
        points.setdefault(family, {})[spent] = [1 - metric.value for metric in metrics]
    return {family: fit(of_family) for family, of_family in points.items()}


def table(results: Results) -> Table:
    """Table 6: models, their operations and accuracy; the paper's below."""
    groups = results.group("family", "model", "length", "exaflops")
    rows = []
    for (family, name, length, spent), metrics in groups.items():
        rows.append((family, name, f"{length:g}", f"{spent:.3g}", cell_text(metrics)))
    for family, theirs in PAPER.items():
        for name, (spent, value) in theirs.items():
            rows.append((f"paper: {family}", name, "", f"{spent:,}", f"{value:.2f}"))
    notes = noise(list(groups.values()))[:1]
    notes += [law_text(family, fitted) for family, fitted in fits(results).items()]
    columns = ("family", "model", "length", "exaFLOPs", "accuracy, %")
    return Table("Table 6: accuracy and operations of training", columns, rows, notes)


def draw(results: Results) -> Figure:
    """Figure 5: here with the laws, and the paper's."""
    figure, (here, theirs) = panels(("here", "the paper: average of five transfers"))
    groups = results.group("family", "exaflops")
    fitted = fits(results)
    for number, family in enumerate(FAMILIES):
        points = {spent: values for (name, spent), values in groups.items() if name == family}
        line(here, points, family, number, joined=False)
        law(here, fitted.get(family), number)
        curve(theirs, dict(PAPER[family].values()), family, number)
    here.set_ylabel(axis_title(next(iter(groups.values()), [])))
    for axes in (here, theirs):
        logarithmic(axes)
        axes.set_xlabel("exaFLOPs of training")
        legend(axes)
    return figure


def predict(results: Results, question: str) -> list[str]:
    """What so many exaFLOPs would give each family; or the training of a named model on as many
    images as the longer runs saw. Raises ValueError for what is neither."""
    try:
        spent = float(question)
        asked = list(FAMILIES)
    except ValueError:
        model = named(question)
        recipe = results.ask.recipe
        model = model.resized(model.fitting(recipe.model.image))
        spent = exaflops(model, results.plan.steps * recipe.batch)
        asked = [_family(model)]
    if not 0 < spent < math.inf:
        raise ValueError(f"--predict is {question!r}; it is a number of exaFLOPs above 0")
    sentences = []
    for family in asked:
        sentences += answer(family, fits(results).get(family), spent, "exaFLOPs")
    return sentences


def _family(model: ModelConfig) -> str:
    """Which of the three a model is of."""
    if isinstance(model, ResNetConfig):
        return "ResNet"
    if getattr(model, "stem", None) is not None:
        return "hybrid"
    return "ViT"


STUDY = Study(
    name="compute",
    summary="accuracy against the operations of training: ViT, hybrid, ResNet (Figure 5, Table 6)",
    measures=(
        "Three Vision Transformers, two hybrids and three ResNets, each trained for half and for the whole "
        "length; accuracy against the operations of their training. A law, error = floor + scale times "
        "exaFLOPs to the power of -p, is fitted to each family; --predict asks it about other exaFLOPs, or "
        "about a model by its name."
    ),
    found=(
        "Figure 5: Vision Transformers need two to four times less compute than ResNets for the same "
        "accuracy; hybrids are a little better at small compute, and the difference goes with larger models; "
        "nothing saturates yet."
    ),
    limits=(
        "The paper's ranking is one of large data. With a few thousand steps on a small set ResNets win, as "
        "their convolutions know what a Vision Transformer has to learn; the slopes can be compared, the order "
        "says nothing about JFT. One rate and one schedule for all models."
    ),
    cells=cells,
    table=table,
    draw=draw,
    check=check,
    predict=predict,
)
