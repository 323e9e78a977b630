"""Fine-tuning published weights: the paper's protocol (Table 4, App. B.1.1), BiT's rule, and one for photographs of one's own."""

from dataclasses import dataclass, replace

import numpy as np

from vitkit.data import (
    Augmentation,
    Columns,
    Preprocessing,
    Source,
    open_image,
    open_splits,
)
from vitkit.objectives import Supervised
from vitkit.system.span import Span
from vitkit.train import Data, Optim, Recipe
from vitkit.weights import adopt, load

SWEEP = (0.001, 0.003, 0.01, 0.03)


@dataclass(frozen=True)
class Task:
    """How one data set is fine-tuned on: a row of Table 4, with what the text and the official code add."""

    steps: int
    warmup: int
    """Steps; not in the paper, the official code's."""
    lr: float
    """Where nothing is chosen: the official configurations'."""
    rates: tuple[float, ...] = SWEEP
    """The base learning rates that the paper chooses from."""
    hold_out: float = 0.1
    """Share of the training images that it chooses on, where there is no validation part."""
    batch: int = 512
    side: int = 384
    """Pixels; 0 keeps the model's own image size and shape."""
    bit: bool = False
    """BiT's rule in place of the paper's cosine and Inception crop: a staircase, and random crops of a resized square."""
    mixup: float = 0.0
    """BiT's, for 20,000 images and more."""


TABLE_4 = {
    "imagenet": Task(20_000, 500, 0.03, (0.003, 0.01, 0.03, 0.06), hold_out=0.01),
    "cifar100": Task(10_000, 500, 0.01, hold_out=0.02),
    "cifar10": Task(10_000, 500, 0.01, hold_out=0.02),
    "pets": Task(500, 100, 0.003),
    "flowers": Task(500, 100, 0.003),
    "vtab": Task(2_500, 500, 0.01, (0.01,), hold_out=0.2),
}
PRESETS = (*TABLE_4, "bit")


def finetune(
    model: str, data: str, preset: str = "", image: int = 0, columns: Columns | None = None
) -> Recipe:
    """`vitkit finetune MODEL DATA`: published weights with a new head of zeros, on images of one's own.

    Always SGD with momentum 0.9, no weight decay, gradients clipped at a norm of 1. A preset of Table 4 (imagenet, cifar100,
    cifar10, pets, flowers, vtab) is the paper's: batch 512, warm-up and cosine, Inception crops, square evaluation, 384
    pixels with the position table resampled and the patch kept, everything but the test part trained on. `bit` is
    BiT-HyperRule, which the paper tries for ResNets besides. Without a preset it is ten epochs in batches of 32, at least
    200 steps and at most 10,000, at the model's own size. `image` is another side in pixels.

    Raises ValueError for an unknown preset, and for a model or data that cannot be opened.
    """
    if preset and preset not in PRESETS:
        raise ValueError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    classifier = load(model, quiet=True)
    columns = columns or Columns()

    # How long, how fast, how large
    task = _task(preset, data, columns)
    side = image or task.side
    size = (side, side) if side else classifier.preprocessing.size
    adopted, _ = adopt(classifier, labels=(), image=size, new_head=True)

    # What the images go through
    preprocessing = _resized(classifier.preprocessing, size)
    if preset:
        preprocessing = replace(preprocessing, rule="square", resize=0)
    augmentation = Augmentation()
    if task.bit:
        augmentation = Augmentation(crop="resize_crop", resize=_square_before_crop(side))
    return Recipe(
        name=f"finetune-{preset or 'own'}",
        init=model,
        model=adopted.model.config,
        data=Data(
            source=data,
            columns=columns,
            preprocessing=preprocessing,
            augmentation=augmentation,
            parts="final" if preset else "given",
            hold_out=task.hold_out,
        ),
        optim=Optim(
            name="sgd",
            lr=task.lr,
            warmup=Span(task.warmup, "steps"),
            schedule="staircase" if task.bit else "cosine",
        ),
        objective=Supervised(mixup=task.mixup),
        length=Span(task.steps, "steps"),
        batch=task.batch,
        micro_batch=min(task.batch, 64),
        evaluate_every=Span(max(task.steps // 5, 1), "steps"),
        save_every=Span(max(task.steps // 10, 1), "steps"),
        log_every=max(min(50, task.steps // 20), 1),
    )


def _task(preset: str, data: str, columns: Columns) -> Task:
    """A row of Table 4, or what follows from the training images. Raises ValueError without any."""
    if preset in TABLE_4:
        return TABLE_4[preset]
    images = open_splits(data, columns).train
    if images is None or not len(images):
        raise ValueError("there are no training images to fine-tune on")
    return bit_hyper_rule(images) if preset == "bit" else _own(len(images))


def _own(images: int) -> Task:
    """So many photographs of one's own: ten epochs, at least 200 steps and at most 10,000."""
    steps = min(max(10 * images // 32, 200), 10_000)
    return Task(steps, steps // 10, 0.01, batch=32, side=0)


def bit_hyper_rule(images: Source) -> Task:
    """BiT's rule (Kolesnikov et al. 2020): steps and mixup by the number of images, their size by that of some of them."""
    # Small, medium or large
    count = len(images)
    steps = 500
    if count >= 20_000:
        steps = 10_000
    if count >= 500_000:
        steps = 20_000
    warmup = 100 if steps == 500 else 500
    mixup = 0.1 if count >= 20_000 else 0.0

    # The median area of up to 16 images, from all over the data
    areas = []
    for index in np.linspace(0, count - 1, min(count, 16)).astype(int):
        height, width = open_image(images[index][0], images.name(index)).size
        areas.append(height * width)
    side = 128 if np.median(areas) < 96**2 else 384
    return Task(steps, warmup, 0.003, side=side, bit=True, mixup=mixup)


def _square_before_crop(side: int) -> int:
    """The square that BiT resizes an image to before a random crop of this side: 160 for 128, 448 for 384."""
    if side < 160:
        return side * 160 // 128
    return side * 448 // 384


def _resized(own: Preprocessing, size: tuple[int, int]) -> Preprocessing:
    """A model's own preprocessing at another size; what is cut off at the borders stays in proportion."""
    resize = 0
    if own.resize:
        resize = max(round(own.resize * max(size) / max(own.size)), max(size))
    return replace(own, size=size, resize=resize)
