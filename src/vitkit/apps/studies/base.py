"""The run that a study varies: a small Vision Transformer that suits the size of the images.

Anything else is a recipe of one's own: `vitkit study NAME --recipe file.py:function`.
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

SIDES = (8, 16, 32, 64, 128)  # of images in pixels: the largest that theirs reach
GRID = 8  # patches along a side
LEAST_PATCH = 2
LOOKED_AT = 16  # images whose size is looked at
WARMUP = 10  # the share of a run in which the rate grows is one tenth
SMALL_RESNET = Backbone(units=(1, 1, 1), width=0.5)  # GroupNorm has at least 32 channels


def small_vit(data: str, splits: Splits) -> Recipe:
    """A ViT of width 64 and depth 4 from scratch, by Adam, on images of one of SIDES; training
    images are shifted or cropped by chance, and every second one is mirrored, unless the classes do not
    survive that."""
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
    workers = 0  # small images are prepared faster than they are handed over
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
    """The side of a study's images, from that of some of the training images."""
    images = splits.train
    assert images is not None  # as refuse_without_classes has checked
    sides = []
    for index in np.linspace(0, len(images) - 1, min(len(images), LOOKED_AT)).astype(int):
        sides.append(min(open_image(images[index][0], images.name(index)).size))
    typical = statistics.median(sides)
    fitting = [side for side in SIDES if side <= typical]
    return max(fitting, default=SIDES[0])


def on_other_images(recipe: Recipe, source: str) -> Recipe:
    """The same run on another data set, which decides anew which augmentations keep its classes."""
    augmentation = replace(recipe.data.augmentation, auto=True)
    return replace(recipe, data=replace(recipe.data, source=source, augmentation=augmentation))


def check_square_patches(model: ViTConfig) -> int:
    """The side of a model's patches. Raises VitkitError for ones that a study cannot vary: rectangles, or
    overlapping ones."""
    if model.patches.overlaps or isinstance(model.patch, tuple):
        raise BadSettings(
            "this study varies the side of square patches that lie side by side; leave out "
            "model.stride, and give one number for model.patch"
        )
    return model.patch


def for_steps(recipe: Recipe, steps: int, evaluations: int = 1) -> Recipe:
    """The same run for this many steps, with this many evaluations, the last one at its end."""
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
    """Each of these runs with this many seeds: first all with the first seed, then all with the
    second."""
    grid = []
    for seed in range(seeds):
        for cell in cells:
            assert isinstance(cell.recipe, Recipe)
            recipe = replace(cell.recipe, seed=seed)
            grid.append(Cell(f"{cell.name}/seed-{seed}", recipe, cell.settings | {"seed": seed}))
    return grid


def on_a_share(recipe: Recipe, share: float, seed: int) -> Recipe:
    """The same run on a share of the training images, every class alike: those that this seed draws."""
    if share == 1:
        return recipe
    data = replace(recipe.data, subset=share, subset_by_class=True, subset_seed=seed)
    return replace(recipe, data=data)


def measured_by(recipe: Recipe, fewshot: str) -> Recipe:
    """The same run, compared by 5-shot accuracy on other images, or else by its own."""
    if not fewshot:
        return replace(recipe, evals=(Eval(Accuracy()),))
    return replace(recipe, evals=(five_shot(fewshot), Eval(Accuracy())))


def five_shot(images: str) -> Eval:
    """The evaluator of 5-shot accuracy on other images."""
    return Eval(Fewshot((5,)), data=images)


def with_shape(recipe: Recipe, **changes: Any) -> Recipe:
    """The same run of a model with other values of some settings."""
    return replace(recipe, model=replace(recipe.model, **changes))


def resnet_like(recipe: Recipe, backbone: Backbone = SMALL_RESNET) -> Recipe:
    """The same run with a ResNet."""
    return replace(recipe, model=ResNetConfig(backbone, image=recipe.model.image, classes=0))
