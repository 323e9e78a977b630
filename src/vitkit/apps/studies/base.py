"""The default base recipe of a study: a small Vision Transformer for the size of the images; and
variations of a base recipe.

For any other base recipe: `vitkit study NAME --recipe file.py:function`.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vitkit.data import Augmentation, Preprocessing, Splits, open_image
from vitkit.evaluation import Accuracy, Eval, Fewshot
from vitkit.models import Backbone, ResNetConfig, ViTConfig
from vitkit.recipes import Data, Optim, Recipe
from vitkit.system.errors import BadSettings
from vitkit.system.span import Span
from vitkit.training import Cell

SIDES = (8, 16, 32, 64, 128)  # image sizes in pixels: the largest one that the images reach is used
GRID = 8  # patches along a side
LEAST_PATCH = 2
LOOKED_AT = 16  # images whose size is read
WARMUP = 10  # the warm-up takes one part in this many of a run
SMALL_RESNET = Backbone(units=(1, 1, 1), width=0.5)  # GroupNorm requires at least 32 channels


def small_vit(data: str, splits: Splits) -> Recipe:
    """A ViT of width 64 and depth 4 from scratch, trained by Adam, on images of one of SIDES. Training
    images get random shifts or crops and random mirroring, unless these change the
    classes."""
    side = side_of(splits)
    model = ViTConfig(
        width=64,
        depth=4,
        mlp=128,
        heads=2,
        patch=max(side // GRID, LEAST_PATCH),
        image=(side, side),
        classes=0,
    )
    augmentation = Augmentation(crop="pad_crop", pad=side // 8, auto=True)
    workers = 0  # small images are prepared faster than sent between processes
    if side > 64:
        augmentation = Augmentation(auto=True)
        workers = -1
    return Recipe(
        name="study",
        model=model,
        data=Data(
            source=data,
            preprocessing=Preprocessing(size=(side, side)),
            augmentation=augmentation,
            check=False,
            workers=workers,
        ),
        optim=Optim(lr=1e-3, weight_decay=0.05, decay_on="kernels"),
        batch=128,
        precision="auto",
        keep=1,
    )


def side_of(splits: Splits) -> int:
    """The image size of a study, from the sizes of some training images."""
    images = splits.train
    assert images is not None  # refuse_without_classes requires it
    sides = []
    for index in np.linspace(0, len(images) - 1, min(len(images), LOOKED_AT)).astype(int):
        sides.append(min(open_image(images[index][0], images.name(index)).size))
    typical = statistics.median(sides)
    fitting = [side for side in SIDES if side <= typical]
    return max(fitting, default=SIDES[0])


def on_other_images(recipe: Recipe, source: str) -> Recipe:
    """The recipe on another data set, for which the augmentations are chosen again."""
    augmentation = replace(recipe.data.augmentation, auto=True)
    return replace(recipe, data=replace(recipe.data, source=source, augmentation=augmentation))


def check_square_patches(model: ViTConfig) -> int:
    """The side of a model's patches. Raises VitkitError for patches that a study cannot vary:
    rectangular or overlapping ones."""
    if model.patches.overlaps or isinstance(model.patch, tuple):
        raise BadSettings(
            "this study varies the side of square patches that lie side by side; leave out "
            "model.stride, and give one number for model.patch"
        )
    return model.patch


def for_steps(recipe: Recipe, steps: int, evaluations: int = 1) -> Recipe:
    """The recipe with this many steps and evaluations, the last one at its end."""
    every = Span(max(steps // evaluations, 1))
    few = max(steps // 10, 1)
    return replace(
        recipe,
        length=Span(steps),
        optim=replace(recipe.optim, warmup=Span(steps // WARMUP)),
        evaluate_every=every,
        save_every=Span(few),
        log_every=few,
    )


def with_every_seed(cells: Sequence[Cell], seeds: int) -> list[Cell]:
    """Each cell with each seed: first all cells with the first seed, then all with the second, and so
    on."""
    grid = []
    for seed in range(seeds):
        for cell in cells:
            assert isinstance(cell.recipe, Recipe)
            recipe = replace(cell.recipe, seed=seed)
            grid.append(Cell(f"{cell.name}/seed-{seed}", recipe, cell.settings | {"seed": seed}))
    return grid


def on_a_share(recipe: Recipe, share: float, seed: int) -> Recipe:
    """The recipe on a class-balanced share of the training images, drawn with this seed."""
    if share == 1:
        return recipe
    data = replace(recipe.data, subset=share, subset_by_class=True, subset_seed=seed)
    return replace(recipe, data=data)


def measured_by(recipe: Recipe, fewshot: str) -> Recipe:
    """The recipe with 5-shot accuracy on the images of `fewshot` as its metric; with its own
    accuracy for ""."""
    if not fewshot:
        return replace(recipe, evals=(Eval(Accuracy()),))
    return replace(recipe, evals=(five_shot(fewshot), Eval(Accuracy())))


def five_shot(images: str) -> Eval:
    """The evaluator of 5-shot accuracy on the given images."""
    return Eval(Fewshot((5,)), data=images)


def with_shape(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with changes of its model's configuration."""
    return replace(recipe, model=replace(recipe.model, **changes))


def resnet_like(recipe: Recipe, backbone: Backbone = SMALL_RESNET) -> Recipe:
    """The recipe with a ResNet as its model."""
    return replace(recipe, model=ResNetConfig(backbone, image=recipe.model.image, classes=0))
