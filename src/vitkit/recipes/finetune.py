"""Fine-tuning published weights: the paper's protocol (Table 4, App. B.1.1), BiT's rule, and one for photographs of one's own."""

from dataclasses import dataclass, replace

import numpy as np

from vitkit.data import Augmentation, Columns, Source, open_image, open_splits
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
    found, columns = load(model, quiet=True), columns or Columns()
    task = (
        TABLE_4[preset]
        if preset in TABLE_4
        else _by_size(open_splits(data, columns).train, bit=preset == "bit")
    )
    own, side = found.preprocessing, image or task.side
    size = (side, side) if side else own.size
    if preset:
        prepare = replace(own, size=size, rule="square", resize=0)
    else:
        resize = max(round(own.resize * max(size) / max(own.size)), max(size)) if own.resize else 0
        prepare = replace(own, size=size, resize=resize)
    larger = (
        side * 160 // 128 if side < 160 else side * 448 // 384
    )  # BiT's square before its random crop
    return Recipe(
        name=f"finetune-{preset or 'own'}",
        init=model,
        model=adopt(found, labels=(), image=size, new_head=True)[0].model.config,
        data=Data(
            source=data,
            columns=columns,
            preprocessing=prepare,
            augmentation=Augmentation(crop="resize_crop", resize=larger)
            if task.bit
            else Augmentation(),
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


def _by_size(images: Source | None, bit: bool) -> Task:
    """What follows from the number of training images and, for BiT, from their size. Raises ValueError without any."""
    if images is None or not len(images):
        raise ValueError("there are no training images to fine-tune on")
    if not bit:
        steps = min(max(10 * len(images) // 32, 200), 10_000)
        return Task(steps, steps // 10, 0.01, batch=32, side=0)
    some = np.linspace(0, len(images) - 1, min(len(images), 16)).astype(int)
    areas = [
        height * width
        for height, width in (open_image(images[i][0], images.name(i)).size for i in some)
    ]
    steps, warmup = (
        (500, 100)
        if len(images) < 20_000
        else (10_000, 500)
        if len(images) < 500_000
        else (20_000, 500)
    )
    mixup = 0.1 if len(images) >= 20_000 else 0.0
    return Task(
        steps, warmup, 0.003, side=128 if np.median(areas) < 96**2 else 384, bit=True, mixup=mixup
    )
