"""Fine-tuning published weights: the paper's protocol (Table 4, App. B.1.1), BiT's rule, and one
for photographs of your own.
"""

import sys
from dataclasses import dataclass, replace

import numpy as np

from vitkit.data import (
    Augmentation,
    Columns,
    Source,
    look_at,
    open_image,
    open_splits,
)
from vitkit.models import ModelConfig
from vitkit.objectives import Supervised
from vitkit.objectives.supervised import unbalanced
from vitkit.system.ranks import on_rank_0
from vitkit.system.span import Span
from vitkit.training import Data, Optim, Recipe
from vitkit.training.channels import fitted
from vitkit.weights import Classifier, adopt, load_as
from vitkit.weights.adopting import preprocessing_for
from vitkit.weights.hints import changed_preprocessing
from vitkit.weights.labels import numbered
from vitkit.weights.said import Hints

LOSS = {"classes": "sigmoid", "number": "squared"}  # by the kind of targets; softmax for one class
SWEEP = (0.001, 0.003, 0.01, 0.03)  # the learning rates that Table 4 chooses from, for most tasks


@dataclass(frozen=True)
class Task:
    """How a model is fine-tuned on one data set: a row of Table 4, with what the paper's text and
    the official code add."""

    steps: int
    """Training steps."""
    warmup: int
    """Steps of the warm-up: the official code's, not in the paper."""
    lr: float
    """Base learning rate if none is chosen: the official configurations'."""
    rates: tuple[float, ...] = SWEEP
    """The base learning rates that the paper chooses from."""
    hold_out: float = 0.1
    """Share of the training images that it chooses on, if there is no validation part."""
    batch: int = 512
    """Examples of a step."""
    side: int = 384
    """Height and width of images in pixels; 0 keeps the model's own image size."""
    bit: bool = False
    """BiT's staircase, and random crops of a resized square, instead of the paper's cosine and
    Inception crop."""
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
FEW = 2_000  # images, of which an epoch has too few batches of 32 to learn much in
SMALL_BATCH = 8  # for them
MANY_CLASSES = 40  # from which on a head of zeros grows slowly: each class is seldom in a batch,
THEIR_RATE = 0.02  # so twice the rate is better
SIDES = (128, 384)  # of the images of the presets, in pixels, if the model's patch divides them
PRESETS = ("quick", "none", *TABLE_4, "bit")


def finetune(
    model: str,
    data: str,
    preset: str = "none",
    hints: Hints | None = None,
    columns: Columns | None = None,
) -> Recipe:
    """`vitkit finetune MODEL DATA`: published weights with a new head of zeros, on your own images.

    SGD with momentum 0.9, no weight decay, gradients clipped at a norm of 1; and by `preset`:

    - a row of Table 4 (imagenet, cifar100, cifar10, pets, flowers, vtab): the paper's protocol,
      that is batch 512, warm-up and cosine, Inception crops, square evaluation, 384 pixels
      (position embeddings are resampled, patches keep their size; 378 pixels for patches of 14, and
      so on), training on all but the test part;
    - "bit": BiT-HyperRule, which the paper tries for ResNets too;
    - "none": ten epochs in batches of 32, at least 200 steps and at most 10,000, at the model's own
      image size, in bfloat16 where the machine has instructions for it;
    - "quick": the same without a length, which `vitkit.studies.answer` chooses by the time that
      there is; without crops and flips, in batches of 8 for fewer than 2,000 images, and with
      classes of unequal size counting alike. A part of the training images is held out, broken
      images are left out, and the loss is the one for the data's kind of targets.

    `hints` say what the model's file does not, and may give another size of images and another
    preprocessing. Raises ValueError for an unknown preset, and for a model or data that cannot be
    opened.
    """
    if preset not in PRESETS:
        raise ValueError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    protocol = preset not in ("quick", "none")
    hints = hints or Hints()
    if hints.labels:
        raise ValueError(
            "--labels names the classes of the model's own head, and fine-tuning gives it another, "
            "whose classes are the data's; leave it out"
        )
    columns = columns or Columns()
    classifier = load_as(model, replace(hints, channels=None), quiet=True)
    classifier = _with_channels(classifier, hints.channels, data, columns)

    # How long, how fast, how large
    task = _task(preset, data, columns)
    size = hints.image or classifier.preprocessing.size
    if task.side and not hints.image:
        side = divisible(task.side, classifier.model.config)
        size = (side, side)
    labels = _head_of_recipe(classifier.model.config, data, columns)
    adopted, _ = adopt(classifier, labels=labels, image=size, new_head=True)

    # What the images go through
    preprocessing = preprocessing_for(classifier.preprocessing, size)
    if protocol:
        preprocessing = replace(preprocessing, rule="square", resize=0)
        preprocessing = changed_preprocessing(preprocessing, hints)
    augmentation = Augmentation()
    if task.bit:
        augmentation = Augmentation(crop="resize_crop", resize=square_before_crop(max(size)))
    recipe = Recipe(
        name=f"finetune-{preset}" if protocol else "finetune",
        init=model,
        model=adopted.model.config,
        data=Data(
            source=data,
            columns=columns,
            preprocessing=preprocessing,
            augmentation=augmentation,
            parts="final" if protocol else "given",
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
        precision="float32" if protocol else "auto",
        evaluate_every=Span(max(task.steps // 5, 1), "steps"),
        save_every=Span(max(task.steps // 10, 1), "steps"),
        log_every=max(min(50, task.steps // 20), 1),
    )
    if preset == "quick":
        return _quick(recipe, columns)
    return recipe


def _with_channels(
    classifier: Classifier, channels: int | None, data: str, columns: Columns
) -> Classifier:
    """The model for images of so many channels; if nobody says how many, for those of the data where
    these are no photographs, such as 12 bands of a satellite."""
    if channels is None and classifier.model.config.channels != 3:
        return classifier
    images = open_splits(data, columns).train
    if images is None or not len(images):
        return classifier
    if channels is None:
        seen = look_at(images)
        if seen.colours:
            return classifier
        channels = seen.channels
    adapted, sentences = adopt(classifier, channels=channels)
    if not sentences:
        return classifier
    for sentence in sentences:
        _say(sentence)
    preprocessing = fitted(adapted.preprocessing, channels, images, _say)
    return replace(adapted, preprocessing=preprocessing)


def _say(sentence: str) -> None:
    if on_rank_0():
        print(sentence, file=sys.stderr)


def divisible(side: int, config: ModelConfig) -> int:
    """The side in pixels, or the multiple of the model's patch below it: the paper's 384 are 378 for a
    patch of 14."""
    stride = getattr(config, "stride", 1)
    return side // stride * stride


def _quick(recipe: Recipe, columns: Columns) -> Recipe:
    """The recipe for as long as there is time, which is not known yet: its spans are 0.

    The images are seen whole and unmirrored: in a few epochs there is too little time to learn what
    crops hide, and nobody has said that a mirrored sign or digit is of the same class. Classes of
    unequal size count alike.
    """
    splits = open_splits(recipe.data.source, columns)
    batch = recipe.batch
    if splits.train is not None and len(splits.train) < FEW:
        batch = SMALL_BATCH
    optim = replace(recipe.optim, warmup=Span(0, "steps"))
    if splits.target_kind == "class" and len(splits.labels) >= MANY_CLASSES:
        optim = replace(optim, lr=THEIR_RATE)
    objective = Supervised(loss=LOSS.get(splits.target_kind, "softmax"))
    if splits.train is not None and splits.target_kind == "class":
        counts = np.bincount(splits.train.targets, minlength=len(splits.labels))
        if unbalanced(counts):
            objective = replace(objective, class_weights="balanced")
    later = Span(0, "steps")
    whole = Augmentation(crop="none", flip=False)
    data = replace(recipe.data, augmentation=whole, parts="select", hold_out=0.2)
    return replace(
        recipe,
        data=replace(data, on_bad_image="skip"),
        optim=optim,
        objective=objective,
        batch=batch,
        length=later,
        evaluate_every=later,
        save_every=later,
        early_stop=3,
        log_every=50,
    )


def _head_of_recipe(config: ModelConfig, data: str, columns: Columns) -> tuple[str, ...]:
    """The classes of a recipe's model: none, for `resolve` fills them in. A distilled model has no
    place for none, so it gets the data's."""
    if getattr(config, "pool", None) != "distilled":
        return ()
    splits = open_splits(data, columns)
    outputs = Supervised().head(splits.target_kind, len(splits.labels))
    return numbered(outputs)


def _task(preset: str, data: str, columns: Columns) -> Task:
    """A row of Table 4, or a task by the number of training images. Raises ValueError if there are
    none."""
    if preset in TABLE_4:
        return TABLE_4[preset]
    images = open_splits(data, columns).train
    if images is None or not len(images):
        raise ValueError(
            f"{data} has no images to learn from, only others to measure on; call the folder of those "
            "to learn from train"
        )
    if preset == "bit":
        return bit_hyper_rule(images)
    return _without_preset(len(images))


def _without_preset(images: int) -> Task:
    """Ten epochs, at least 200 steps and at most 10,000, at the model's own image size."""
    steps = min(max(10 * images // 32, 200), 10_000)
    return Task(steps, steps // 10, 0.01, batch=32, side=0)


def bit_hyper_rule(images: Source) -> Task:
    """BiT's rule (Kolesnikov et al. 2020): steps and mixup follow from the number of images, the
    image size from the size of some of them."""
    # A small, a medium or a large data set
    count = len(images)
    if count < 20_000:
        steps, warmup, mixup = 500, 100, 0.0
    elif count < 500_000:
        steps, warmup, mixup = 10_000, 500, 0.1
    else:
        steps, warmup, mixup = 20_000, 500, 0.1

    small, large = SIDES
    side = small if few_pixels(images) else large
    return Task(steps, warmup, 0.003, side=side, bit=True, mixup=mixup)


def few_pixels(images: Source, side: int = 96) -> bool:
    """Whether images are small: the median of up to 16 of them, evenly spread, has fewer pixels than a
    square of this side. 96 is BiT's rule."""
    areas = []
    for index in np.linspace(0, len(images) - 1, min(len(images), 16)).astype(int):
        height, width = open_image(images[index][0], images.name(index)).size
        areas.append(height * width)
    return bool(np.median(areas) < side**2)


def square_before_crop(side: int) -> int:
    """The side of the square that BiT resizes an image to before a random crop of this side: 160
    for 128, 448 for 384."""
    if side < 160:
        return side * 160 // 128
    return side * 448 // 384
