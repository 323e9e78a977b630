"""Figures 3 and 4 (Section 4.3): accuracy against the number of images that a model learns from."""

import math
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.data import open_splits, subset_size
from vitkit.models import ViTConfig
from vitkit.studies.base import for_steps, measured_by, on_a_share, resnet_like, with_shape
from vitkit.studies.cell import Best, Cell
from vitkit.studies.drawing import axis_title, law, legend, line, logarithmic, panels
from vitkit.studies.outcomes import Ask, Results, Table, cell_text, noise
from vitkit.studies.regularising import (
    USUAL,
    folder_of,
    regularisation_of,
    regularisation_text,
    regularised,
)
from vitkit.studies.rows import Row
from vitkit.studies.scaling import Fit, answer, fit, law_text
from vitkit.studies.study import Study
from vitkit.training import Recipe

SHARES = (1.0, 0.3, 0.1, 0.03)  # of the training images: the paper's 303M, 90M, 30M and 9M
MODELS = ("ViT", "half-width ViT", "ResNet")
PAPER = {  # read from Figure 4, 5-shot on ImageNet in percent; the paper has no table of it
    "ViT-L/16 beside R152x2": "below it with 9M images, above it with 90M and more",
    "ViT-B/32 beside R50x1": "far below it with 9M images, above it with 90M and more",
    "ResNets": "ahead with few images, and level off sooner",
}


def cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """A run of every model on every share of the images with every seed. All have the same number of
    steps, so that small parts are seen more often; a seed draws its own images. If it is asked for,
    runs on held-out images, with the first seed, choose the regularisation for every share but the
    whole, as in Figure 3."""
    grid = []
    train = open_splits(ask.data).train
    base = for_steps(measured_by(ask.recipe, ask.fewshot), steps)
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
                tried = _tried(recipe, name, images)
                if seed == 0:
                    grid += tried
                grid.append(_with_the_best(cell, tried))
    return grid


def _tried(recipe: Recipe, name: str, images: int) -> list[Cell]:
    """The runs that choose the regularisation of a model for so many images."""
    selecting = replace(measured_by(recipe, ""), data=replace(recipe.data, parts="select"))
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


def check(ask: Ask) -> None:
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


def fits(results: Results) -> dict[str, Fit | None]:
    """The law of each model: its error against the images."""
    points: dict[str, dict[float, list[float]]] = {}
    for (name, images), metrics in results.group("model", "images").items():
        points.setdefault(name, {})[images] = [1 - metric.value for metric in metrics]
    return {name: fit(of_model) for name, of_model in points.items()}


def table(results: Results) -> Table:
    """Accuracy by images and model."""
    groups = results.group("model", "images")
    sizes = sorted({images for _, images in groups})
    rows = []
    for images in sizes:
        cells_of_row = [cell_text(groups.get((name, images), [])) for name in MODELS]
        rows.append((f"{images:,}", *cells_of_row))
    notes = noise(list(groups.values()))[:1]
    notes += _chosen(results)
    notes += [law_text(name, fitted) for name, fitted in fits(results).items()]
    notes += [f"the paper, {name}: {text}" for name, text in PAPER.items()]
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


def draw(results: Results) -> Figure:
    """Figure 4, with the laws."""
    figure, (axes,) = panels(("accuracy against training images",))
    groups = results.group("model", "images")
    fitted = fits(results)
    for number, name in enumerate(MODELS):
        points = {images: values for (model, images), values in groups.items() if model == name}
        line(axes, points, name, number)
        law(axes, fitted.get(name), number)
    logarithmic(axes)
    axes.set_xlabel("training images")
    axes.set_ylabel(axis_title(next(iter(groups.values()), [])))
    legend(axes)
    return figure


def predict(results: Results, question: str) -> list[str]:
    """What so many images would give each model. Raises ValueError for what is no number of them."""
    try:
        images = float(question.replace(",", ""))
    except ValueError:
        raise ValueError(f"--predict is {question!r}; data-size takes a number of images") from None
    if not 1 <= images < math.inf:
        raise ValueError(f"--predict is {question!r}; it is 1 image or more")
    sentences = []
    for name, fitted in fits(results).items():
        sentences += answer(name, fitted, images, "images")
    return sentences


STUDY = Study(
    name="data-size",
    summary="accuracy against the number of training images, with a law fitted (Figures 3, 4)",
    measures=(
        "A Vision Transformer, one of half its width and a ResNet, each on all training images, on 30, 10 "
        "and 3 percent of them, drawn anew for every seed, with the same number of steps. A law, error = "
        "floor + scale times images to the power of -p, is fitted to each; --predict asks it about other "
        "numbers of images. With --regularise weight decay, dropout and label smoothing are chosen on "
        "held-out images for each model on each smaller part (Figure 3)."
    ),
    found=(
        "Figure 4: with 9 million images of JFT a ResNet is better than a Vision Transformer of the same "
        "cost, with 90 million and more it is the other way round. No regularisation was added for the "
        "small parts there; in Figure 3 it was chosen for each smaller set."
    ),
    limits=(
        "With few steps a run sees few images more than once, so that more images cannot help: below about "
        "one epoch of all images the curves are flat at their right end, and say nothing about the data. "
        "The crossing of the paper needs millions of images. The law holds for this length of runs alone."
    ),
    cells=cells,
    table=table,
    draw=draw,
    takes=("recipe", "fewshot", "seeds", "regularise"),
    check=check,
    predict=predict,
)
