"""What scale gives: accuracy against the images that a model learns from (Figures 3 and 4, Section 4.3),
and against the operations of its training (Figure 5 and Table 6, Section 4.4). A law is fitted to each."""

import math
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.data import splits_at, subset_size
from vitkit.models import Backbone, ModelConfig, ResNetConfig, ViTConfig, exaflops, named
from vitkit.studies.base import (
    check_square_patches,
    for_steps,
    measured_by,
    on_a_share,
    resnet_like,
    with_every_seed,
    with_shape,
)
from vitkit.studies.drawing import curve, law, line, logarithmic, panels, titles
from vitkit.studies.grid import Best, Cell
from vitkit.studies.laws import Fit, answer, fit, law_text
from vitkit.studies.rows import Row
from vitkit.studies.selection import (
    USUAL,
    folder_of,
    regularisation_of,
    regularisation_text,
    regularised,
)
from vitkit.studies.study import Ask, Results, Study, Table
from vitkit.studies.uncertainty import best_and_worst, cell_text
from vitkit.training import Recipe, divide


def _fits(results: Results, kind: str, x: str) -> dict[str, Fit | None]:
    """The law of each kind of model: its error against images or exaFLOPs."""
    points: dict[str, dict[float, list[float]]] = {}
    for (name, at), metrics in results.group(kind, x).items():
        points.setdefault(name, {})[at] = [1 - metric.value for metric in metrics]
    return {name: fit(of_kind) for name, of_kind in points.items()}


# Images

SHARES = (1.0, 0.3, 0.1, 0.03)  # of the training images: the paper's 303M, 90M, 30M and 9M
MODELS = ("ViT", "half-width ViT", "ResNet")
EVALUATIONS = 10  # of a run, the best of which counts
FIGURE_4 = {  # read from Figure 4, 5-shot on ImageNet in percent; the paper has no table of it
    "ViT-L/16 beside R152x2": "below it with 9M images, above it with 90M and more",
    "ViT-B/32 beside R50x1": "far below it with 9M images, above it with 90M and more",
    "ResNets": "ahead with few images, and level off sooner",
}


def _images_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of every model on every share of the images with every seed. All have the same number of
    steps, so that small parts are seen more often; the weights of the best validation accuracy count
    (early stopping, Section 4.3), on images that no share contains; a seed draws its own images. If
    it is asked for, runs on held-out images, with the first seed, choose the regularisation for every
    share but the whole."""
    grid = []
    base = for_steps(measured_by(ask.recipe, ask.fewshot), steps, EVALUATIONS)
    base = replace(base, best="val/top1", data=replace(base.data, parts="three"))
    train = divide(splits_at(ask.data, typed=True), base.data)["train"]
    shares = {subset_size(len(train), share): share for share in SHARES}
    for seed in range(ask.seeds):
        for images, share in shares.items():
            for name, recipe in _models(base).items():
                recipe = replace(on_a_share(recipe, share, seed), seed=seed)
                folder = f"{name.replace(' ', '-')}/{images}-images/seed-{seed}"
                cell = Cell(folder, recipe, {"model": name, "images": images, "seed": seed})
                if not ask.regularise or share == 1:
                    grid.append(cell)
                    continue
                tried = _selection_cells(recipe, name, images)
                if seed == 0:
                    grid += tried
                grid.append(_with_the_best(cell, tried))
    return grid


def _selection_cells(recipe: Recipe, name: str, images: int) -> list[Cell]:
    """The runs that choose the regularisation of a model for so many images. All but the first come
    after the first."""
    selecting = replace(measured_by(recipe, ""), best="", data=replace(recipe.data, parts="select"))
    folder = f"{name.replace(' ', '-')}/{images}-images/select"
    grid = []
    first = ""
    for changed in regularised(selecting, USUAL):
        values = regularisation_of(changed)
        settings = {"of": name, "of images": images, **values}
        grid.append(Cell(f"{folder}/{folder_of(values)}", changed, settings, after=first))
        first = grid[0].name
    return grid


def _with_the_best(cell: Cell, tried: list[Cell]) -> Cell:
    """The cell with the regularisation that was best."""
    recipes = regularised(cell.recipe, USUAL)
    names = [each.name for each in tried]
    return replace(cell, recipe=Best(tuple(zip(names, recipes, strict=True))), after=names[0])


def _models(recipe: Recipe) -> dict[str, Recipe]:
    """The recipe's model, one of half its width (ViT-b beside ViT-B), and a ResNet."""
    model = recipe.model
    half = with_shape(
        recipe, width=model.width // 2, mlp=model.mlp // 2, heads=max(model.heads // 2, 1)
    )
    return dict(zip(MODELS, (recipe, half, resnet_like(recipe)), strict=True))


def _images_check(ask: Ask) -> None:
    """Raises ValueError for a model that has no half width."""
    model = ask.recipe.model
    if (
        not isinstance(model, ViTConfig)
        or model.width % 4
        or (model.width // 2) % max(model.heads // 2, 1)
    ):
        raise ValueError(
            "data-size halves a Vision Transformer; give a --recipe whose width halves"
        )


def _images_table(results: Results) -> Table:
    """Accuracy by images and model."""
    groups = results.group("model", "images")
    sizes = sorted({images for _, images in groups})
    rows = []
    for images in sizes:
        cells_of_row = [cell_text(groups.get((name, images), [])) for name in MODELS]
        rows.append((f"{images:,}", *cells_of_row))
    notes = best_and_worst(results.by_seed("model", "images"))
    notes += _chosen(results)
    notes += [law_text(name, fitted) for name, fitted in _fits(results, "model", "images").items()]
    notes += [f"the paper, {name}: {text}" for name, text in FIGURE_4.items()]
    return Table(
        "Figure 4: accuracy in percent by training images", ("images", *MODELS), rows, notes
    )


def _chosen(results: Results) -> list[str]:
    """The regularisation of each model for so many images: a sentence each, if it was chosen."""
    best: dict[tuple, Row] = {}
    for row in results.rows:
        if not row.primary or "of images" not in row.settings:
            continue
        key = (row.settings["of"], row.settings["of images"])
        if key not in best or row.metric.beats(best[key].metric):
            best[key] = row
    sentences = []
    for (name, images), row in best.items():
        values = {k: v for k, v in row.settings.items() if k not in ("of", "of images")}
        sentences.append(f"chosen for {name}, {images:,} images: {regularisation_text(values)}")
    return sentences


def _images_draw(results: Results) -> Figure:
    """Figure 4, with the laws."""
    figure, (axes,) = panels(("accuracy against training images",))
    groups = results.group("model", "images")
    fitted = _fits(results, "model", "images")
    for number, name in enumerate(MODELS):
        points = {images: values for (model, images), values in groups.items() if model == name}
        line(axes, points, name, number)
        law(axes, fitted.get(name), number)
    logarithmic(axes)
    titles(axes, "training images", groups)
    return figure


def _images_predict(results: Results, question: str) -> list[str]:
    """What so many images would give each model. Raises ValueError for what is no number of them."""
    try:
        images = float(question.replace(",", ""))
    except ValueError:
        raise ValueError(f"--predict is {question!r}; data-size takes a number of images") from None
    if not 1 <= images < math.inf:
        raise ValueError(f"--predict is {question!r}; it is 1 image or more")
    sentences = []
    for name, fitted in _fits(results, "model", "images").items():
        sentences += answer(name, fitted, images, "images")
    return sentences


DATA_SIZE = Study(
    name="data-size",
    summary="accuracy against the number of training images, with a fitted law (Figure 4)",
    measures=(
        "A Vision Transformer, one of half its width and a ResNet, each on all training images and "
        "on 30, 10 and 3 percent of them, drawn again for every seed, with the same number of "
        f"steps. Of {EVALUATIONS} evaluations the one with the best validation accuracy counts (early "
        "stopping): without a val part, a tenth of the training images is held out for it. A law, "
        "error = floor + scale times images to the power of -p, is fitted to each model; --predict asks "
        "for the error at other numbers of images. With --regularise, weight "
        "decay, dropout and label smoothing are chosen on held-out images for each model and each "
        "smaller part, as for the smaller data sets of Figure 3, whose transfer to ImageNet this study does "
        "not make: see `vitkit study transfer`."
    ),
    found=(
        "Figure 4: with 9 million images of JFT, a ResNet is better than a Vision Transformer of "
        "the same cost; with 90 million and more, the Vision Transformer is better. Figure 4 adds "
        "no regularisation for the smaller parts; Figure 3 chooses it for each smaller data set."
    ),
    limits=(
        "With few steps a run sees few images more than once, so more images cannot help: below "
        "about one epoch of all images, the curves are flat at their right end, and say nothing "
        "about the data. The crossing of the paper needs millions of images. The law holds only "
        "for runs of this length."
    ),
    cells=_images_cells,
    table=_images_table,
    draw=_images_draw,
    takes=("recipe", "fewshot", "seeds", "regularise"),
    check=_images_check,
    predict=_images_predict,
)


# Operations

FAMILIES = ("ViT", "hybrid", "ResNet")
LENGTHS = (0.5, 1.0)  # of the runs: the paper's 7 and 14 epochs
ROOT = 4  # the stride of a ResNet's root, in pixels
TABLE_6 = {  # Table 6: (exaFLOPs, mean of ImageNet, CIFAR-10, CIFAR-100, Pets and Flowers in percent)
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


def _compute_cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of every model of the three families, of two lengths, with every seed."""
    base = measured_by(ask.recipe, ask.fewshot)
    runs = []
    for length in LENGTHS:
        recipe = for_steps(base, max(round(steps * length), 1))
        for (family, name), model in families(ask.recipe.model).items():
            settings = {
                "family": family,
                "model": name,
                "length": length,
                "exaflops": exaflops(model, recipe.length.n * recipe.batch),
            }
            folder = f"{name.replace(' ', '-')}/length-{length:g}"
            runs.append(Cell(folder, replace(recipe, model=model), settings))
    return with_every_seed(runs, ask.seeds)


def families(base: ViTConfig) -> dict[tuple[str, str], ModelConfig]:
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


def _compute_check(ask: Ask) -> None:
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


def _compute_table(results: Results) -> Table:
    """Table 6: models, their operations and accuracy; the paper's below."""
    groups = results.group("family", "model", "length", "exaflops")
    rows = []
    for (family, name, length, spent), metrics in groups.items():
        rows.append((family, name, f"{length:g}", f"{spent:.3g}", cell_text(metrics)))
    for family, theirs in TABLE_6.items():
        for name, (spent, value) in theirs.items():
            rows.append((f"paper: {family}", name, "", f"{spent:,}", f"{value:.2f}"))
    notes = best_and_worst(results.by_seed("model", "length"))
    notes += [
        law_text(family, fitted) for family, fitted in _fits(results, "family", "exaflops").items()
    ]
    columns = ("family", "model", "length", "exaFLOPs", "accuracy, %")
    return Table("Table 6: accuracy and operations of training", columns, rows, notes)


def _compute_draw(results: Results) -> Figure:
    """Figure 5: here with the laws, and the paper's."""
    figure, (here, theirs) = panels(("here", "the paper: average of five transfers"))
    groups = results.group("family", "exaflops")
    fitted = _fits(results, "family", "exaflops")
    for number, family in enumerate(FAMILIES):
        points = {spent: values for (name, spent), values in groups.items() if name == family}
        line(here, points, family, number, joined=False)
        law(here, fitted.get(family), number)
        curve(theirs, dict(TABLE_6[family].values()), family, number)
    for axes, measured in ((here, groups), (theirs, {})):
        logarithmic(axes)
        titles(axes, "exaFLOPs of training", measured)
    return figure


def _compute_predict(results: Results, question: str) -> list[str]:
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
        sentences += answer(
            family, _fits(results, "family", "exaflops").get(family), spent, "exaFLOPs"
        )
    return sentences


def _family(model: ModelConfig) -> str:
    """Which of the three a model is of."""
    if isinstance(model, ResNetConfig):
        return "ResNet"
    if getattr(model, "stem", None) is not None:
        return "hybrid"
    return "ViT"


COMPUTE = Study(
    name="compute",
    summary="accuracy against the operations of training: ViT, hybrid, ResNet (Figure 5, Table 6)",
    measures=(
        "Three Vision Transformers, two hybrids and three ResNets, each trained for half of the "
        "length and for all of it; accuracy against the operations of their training. A law, error "
        "= floor + scale times exaFLOPs to the power of -p, is fitted to each family; --predict "
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
    cells=_compute_cells,
    table=_compute_table,
    draw=_compute_draw,
    check=_compute_check,
    predict=_compute_predict,
)
