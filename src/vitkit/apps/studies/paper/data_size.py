"""Scaling of data: accuracy against the number of training images, on the same data (Figure 4) or
on other data sets after fine-tuning (Figure 3, Section 4.3). A scaling law is fitted to each
model."""

import math
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from vitkit.apps.studies.base import for_steps, measured_by, on_a_share, resnet_like, with_shape
from vitkit.apps.studies.drawing import curve, logarithmic, panels, titles
from vitkit.apps.studies.paper.scaling import answers, draw_runs, drawn, metrics_of, notes_about
from vitkit.apps.studies.protocol import Ask, PaperTable, Results, Study
from vitkit.apps.studies.targets import by_target, check_targets, on_every_target
from vitkit.apps.studies.uncertainty import cell_text
from vitkit.data import splits_at, subset_size
from vitkit.models import ViTConfig
from vitkit.recipes import Recipe
from vitkit.system.errors import BadSettings
from vitkit.training import (
    USUAL,
    Best,
    Cell,
    Row,
    divide,
    folder_of,
    regularisation_of,
    regularisation_text,
    regularised,
)

SHARES = (1.0, 0.3, 0.1, 0.03)  # of the training images, like the paper's 303M, 90M, 30M and 9M
MODELS = ("ViT", "half-width ViT", "ResNet")
EVALUATIONS = 10  # of a run; the best one counts
FIGURE_4 = {  # read off Figure 4, 5-shot on ImageNet in percent; the paper has no table of it
    "ViT-L/16 beside R152x2": "below it with 9M images, above it with 90M and more",
    "ViT-B/32 beside R50x1": "far below it with 9M images, above it with 90M and more",
    "ResNets": "ahead with few images, and level off sooner",
}
FIGURE_3 = {  # Figure 3, from Table 5: ImageNet in percent, by the images of ImageNet, ImageNet-21k and JFT
    "ViT-B/32": {1.3e6: 73.38, 14e6: 81.28, 303e6: 80.73},
    "ViT-B/16": {1.3e6: 77.91, 14e6: 83.97, 303e6: 84.15},
    "ViT-L/32": {1.3e6: 71.16, 14e6: 80.99, 303e6: 84.37},
    "ViT-L/16": {1.3e6: 76.53, 14e6: 85.15, 303e6: 87.12},
    "ViT-H/14": {14e6: 85.13, 303e6: 88.04},
}


def _cells(ask: Ask, steps: int, study_dir: Path) -> list[Cell]:
    """The runs of every model on every share of the images with every seed.

    All runs have the same number of steps, so small shares are repeated more often. The weights
    with the best validation accuracy count (early stopping, Section 4.3), on images that no share
    contains; each seed draws its own images. With `regularise`, runs with the first seed choose the
    regularisation for every share but the whole, on held-out images. With targets, every run is
    then fine-tuned on each of them."""
    grid = []
    base = for_steps(measured_by(ask.varied, ask.fewshot), steps, EVALUATIONS)
    base = replace(base, best="val/top1", data=replace(base.data, parts="three"))
    tuned = _models(replace(ask.varied, evals=()))
    train = divide(splits_at(ask.data, typed=True), base.data)["train"]
    shares = {subset_size(len(train), share): share for share in SHARES}
    shares.pop(1, None)  # a single image has a single class, so nothing can be learned
    for seed in range(ask.seeds):
        for images, share in shares.items():
            for name, recipe in _models(base).items():
                recipe = replace(on_a_share(recipe, share, seed), seed=seed)
                folder = f"{name.replace(' ', '-')}/{images}-images/seed-{seed}"
                cell = Cell(folder, recipe, {"model": name, "images": images, "seed": seed})
                if ask.regularise and share < 1:
                    tried = _selection_cells(recipe, name, images)
                    if seed == 0:
                        grid += tried
                    cell = _with_the_best(cell, recipe, tried)
                grid.append(cell)
                grid += on_every_target(cell, tuned[name], ask.targets, steps, study_dir)
    return grid


def _selection_cells(recipe: Recipe, name: str, images: int) -> list[Cell]:
    """The runs that choose the regularisation of a model for a number of images. All but the first run
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


def _with_the_best(cell: Cell, recipe: Recipe, tried: list[Cell]) -> Cell:
    """The cell of a recipe, with the best regularisation among `tried`."""
    recipes = regularised(recipe, USUAL)
    names = [each.name for each in tried]
    return replace(cell, recipe=Best(tuple(zip(names, recipes, strict=True))), after=names[0])


def _models(recipe: Recipe) -> dict[str, Recipe]:
    """The recipe's model, one of half its width (as ViT-b to ViT-B), and a ResNet."""
    model = recipe.model
    assert isinstance(model, ViTConfig)  # _check requires it
    half = with_shape(
        recipe, width=model.width // 2, mlp=model.mlp // 2, heads=max(model.heads // 2, 1)
    )
    return dict(zip(MODELS, (recipe, half, resnet_like(recipe)), strict=True))


def _check(ask: Ask) -> None:
    """Raises VitkitError for a model whose width cannot be halved, and as `check_targets` does."""
    check_targets(ask)
    model = ask.varied.model
    if (
        not isinstance(model, ViTConfig)
        or model.width % 4
        or (model.width // 2) % max(model.heads // 2, 1)
    ):
        raise BadSettings(
            "data-size halves a Vision Transformer; give a `recipe` whose width halves"
        )


def _table(results: Results) -> PaperTable:
    """Accuracy by number of images and model, on each target if there are targets."""
    on_each = by_target(results, "model", "images")
    rows = []
    for target, runs in on_each.items():
        for images in sorted({images for _, images in runs}):
            row = [f"{images:,}"]
            if target:
                row.insert(0, target)
            for name in MODELS:
                by_seed = runs.get((name, images), {})
                row.append(cell_text(list(by_seed.values())))
            rows.append(tuple(row))
    notes = notes_about(on_each, on_each) + _chosen(results)
    if results.ask.targets:
        for name, theirs in FIGURE_3.items():
            text = ", ".join(f"{value:.2f} % with {n / 1e6:g}M" for n, value in theirs.items())
            notes.append(f"the paper, {name} on ImageNet: {text} images of pre-training")
        title = "Figure 3: accuracy in percent after fine-tuning, by images of pre-training"
        return PaperTable(title, ("target", "images", *MODELS), rows, notes)
    notes += [f"the paper, {name}: {text}" for name, text in FIGURE_4.items()]
    title = "Figure 4: accuracy in percent by training images"
    return PaperTable(title, ("images", *MODELS), rows, notes)


def _chosen(results: Results) -> list[str]:
    """Sentences about the chosen regularisation of each model at each number of images, if it was
    chosen."""
    best: dict[tuple, Row] = {}
    for row in results.rows:
        if not row.primary or "of images" not in row.settings:
            continue
        key = (row.settings["of"], row.settings["of images"])
        if key not in best or row.measured.beats(best[key].measured):
            best[key] = row
    sentences = []
    for (name, images), row in best.items():
        values = {k: v for k, v in row.settings.items() if k not in ("of", "of images")}
        sentences.append(f"chosen for {name}, {images:,} images: {regularisation_text(values)}")
    return sentences


def _draw(results: Results) -> Figure:
    """Figure 4 with the laws; with targets Figure 3, beside the paper's."""
    panels_here = drawn(by_target(results, "model", "images"))
    headings = [f"here: {title}" for title in panels_here]
    if results.ask.targets:
        headings.append("the paper: ImageNet")
    else:
        headings = ["accuracy against training images"]
    figure, every = panels(headings)
    for axes, runs in zip(every, panels_here.values(), strict=False):
        draw_runs(axes, runs, MODELS, joined=True)
        logarithmic(axes)
        titles(axes, "training images", metrics_of(runs))
    if results.ask.targets:
        theirs = every[-1]
        for number, (name, points) in enumerate(FIGURE_3.items()):
            curve(theirs, points, name, len(MODELS) + number)
        logarithmic(theirs)
        titles(theirs, "images of pre-training", {})
        theirs.set_ylabel("top1, %")
    return figure


def _predict(results: Results, question: str) -> list[str]:
    """The predicted accuracy of each model with a number of images. Raises VitkitError if
    `question` is not such a number."""
    try:
        images = float(question.replace(",", ""))
    except ValueError:
        raise BadSettings(
            f"`predict` is {question!r}; data-size takes a number of images"
        ) from None
    if not 1 <= images < math.inf:
        raise BadSettings(f"`predict` is {question!r}; it is 1 image or more")
    return answers(by_target(results, "model", "images"), MODELS, images, "images")


DATA_SIZE: Study = Study(
    name="data-size",
    summary="accuracy against the number of training images, with a fitted law (Figures 3 and 4)",
    measures=(
        "A Vision Transformer, one of half its width and a ResNet, each on all training images and "
        "on 30, 10 and 3 percent of them, drawn again for every seed, with the same number of "
        f"steps. Of {EVALUATIONS} evaluations the one with the best validation accuracy counts (early "
        "stopping): without a val part, a tenth of the training images is held out for it. A law, "
        "error = floor + scale times images to the power of -p, is fitted to each model; `predict` asks "
        "for the error at other numbers of images. `fewshot` measures 5-shot accuracy on other images, as "
        "Figure 4 does. With `targets`, every run is fine-tuned on each of them, half as long, and its "
        "accuracy there counts, as in Figure 3; the first target takes the place of ImageNet. With "
        "`regularise`, weight decay, dropout and label smoothing are chosen on held-out images for each "
        "model and each smaller part, as for the smaller data sets of Figure 3."
    ),
    found=(
        "Figure 4: with 9 million images of JFT, a ResNet is better than a Vision Transformer of "
        "the same cost; with 90 million and more, the Vision Transformer is better. Figure 4 adds "
        "no regularisation for the smaller parts; Figure 3 chooses it for each smaller data set. Figure 3: "
        "pre-trained on ImageNet, ViT-L is worse than ViT-B; only with JFT are the larger models better."
    ),
    limits=(
        "With few steps a run sees few images more than once, so more images cannot help: below "
        "about one epoch of all images, the curves are flat at their right end, and say nothing "
        "about the data. The crossing of the paper needs millions of images. The law holds only "
        "for runs of this length. The parts are of one data set, so `targets` shows the effect of "
        "their size alone; the paper's three sets also differ in their classes."
    ),
    cells=_cells,
    table=_table,
    draw=_draw,
    takes=("recipe", "fewshot", "targets", "seeds", "regularise"),
    check=_check,
    predict=_predict,
)
