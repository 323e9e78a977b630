"""Recipes for fine-tuning published weights: the paper's protocol (Table 4, App. B.1.1), BiT's rule, and one
for a user's own photographs; and the choice of weights if none are given.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from vitkit.data import Augmentation, Columns, Source, Splits, splits_at
from vitkit.evaluation import unbalanced
from vitkit.models import cost, named
from vitkit.objectives import Supervised
from vitkit.recipes.channels import adapted_to
from vitkit.recipes.optim import Optim
from vitkit.recipes.settings import Data, Recipe
from vitkit.recipes.table_4 import (
    TABLE_4,
    UNCROPPED,
    UNMIRRORED,
    TransferTask,
    bit_crops,
    bit_hyper_rule,
    vtab_task,
)
from vitkit.system.console.messages import say
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.machine import autocast, pick_precision
from vitkit.system.processes.ranks import on_rank_0
from vitkit.system.span import Span
from vitkit.weights import (
    Hints,
    Published,
    adopt,
    check_pretrained,
    hub_answers,
    load_as,
    numbered,
    preprocessing_for,
    published_called,
)
from vitkit.weights.adoption import COLOURS
from vitkit.weights.fitting import changed_preprocessing

# Loss for each kind of targets; softmax for one class
LOSS: dict[str, Literal["sigmoid", "squared"]] = {"classes": "sigmoid", "number": "squared"}
# With fewer images, an epoch has too few batches of 32, so batches are smaller
FEW = 2_000
SMALL_BATCH = 8
# On a GPU, larger batches, up to the paper's (Table 4), as long as an epoch has this number of them
LARGEST_BATCH = 512
BATCHES = 64
# From this number of classes on, each class is rare in a batch, so a zero-initialised head learns slowly, and
# twice the learning rate is better
MANY_CLASSES = 40
THEIR_RATE = 0.02
Preset = Literal[
    "quick", "none", "imagenet", "cifar100", "cifar10", "pets", "flowers", "vtab", "bit"
]
PRESETS: tuple[Preset, ...] = get_args(Preset)
Like = Literal["paper", "code"]


def finetune(
    model: str,
    data: str,
    preset: str = "none",
    hints: Hints | None = None,
    columns: Columns | None = None,
    like: Like = "paper",
    *,
    typed: bool = True,
    on_gpu: bool = False,
) -> Recipe:
    """`vitkit finetune MODEL DATA`: published weights with a new head of zeros, on your own images.

    SGD with momentum 0.9, no weight decay, gradients clipped at a norm of 1; and by `preset`:

    - a row of Table 4 (imagenet, cifar100, cifar10, pets, flowers, vtab): the paper's protocol,
      that is batch 512, warm-up and cosine, BiT's preprocessing (a square of 448 pixels, a random
      crop of 384, mirrored or not; in evaluation a square of 384), 384 pixels (position embeddings
      are resampled, patches keep their size; 378 pixels for patches of 14, and so on), training on
      all but the test part. As in BiT, five of VTAB's tasks, which are known by the name of the
      folder, are not cropped, and three are not mirrored; for other images, "vtab" first tests this
      with the model (`Augmentation.auto`);
    - "bit": BiT-HyperRule, which the paper tries for ResNets too;
    - "none": ten epochs in batches of 32, at least 200 steps and at most 10,000, at the model's own
      image size, in bfloat16 if the machine has instructions for it; Inception crops and flips,
      except those that do not preserve the classes, which the run first tests with the model
      (`Augmentation.auto`);
    - "quick": the same without a length, which `vitkit.finetuning` chooses by the available time;
      without crops and flips, in batches of 8 for fewer than 2,000 images, and with equal weights
      for classes of unequal size. On a GPU, batches grow with the number of images, up to the
      paper's 512, and the learning rate with the square root of the batch. A part of the training
      images is held out, broken images are left out, and the loss is the one for the data's kind of
      targets.

    `hints` give settings that the model's file lacks, and may give another image size and another
    preprocessing. `like` "code" trains a row of Table 4 with the augmentation of the released code: Inception
    crops, mirrored or not. For ImageNet, CIFAR, Pets and Flowers the paper says that its
    preprocessing follows BiT (Section 4.1), and for VTAB too (App. B.1.1).

    typed: whether the user or the calling program named `data`, which may then be "file.py:function"; False
        for a name from a file.

    on_gpu: whether the run is for a GPU, which computes small batches no faster than large ones.

    Raises VitkitError for an unknown preset, for a model or data that cannot be opened, and for
    `like` "code" with another preset than a row of Table 4.
    """
    if preset not in PRESETS:
        raise BadSettings(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    if like == "code" and preset not in TABLE_4:
        raise BadSettings(
            f"`like='code'` is for a row of the paper's Table 4 ({', '.join(TABLE_4)}), and the "
            f"preset is {preset}; leave it out"
        )
    protocol = preset not in ("quick", "none")
    hints = hints or Hints()
    if hints.labels:
        raise BadSettings(
            "`labels` names the classes of the model's own head, and fine-tuning replaces that by a head "
            "for the data's classes; leave it out"
        )
    if hints.part:
        raise BadSettings(
            f"`part={hints.part!r}` chooses a part of a file, and a run records the file's name alone; "
            f"convert {model} with `part={hints.part!r}`, and fine-tune the converted model"
        )

    # The model, adapted to the images' number of channels
    columns = columns or Columns()
    classifier = load_as(model, replace(hints, channels=None), quiet=True)
    check_pretrained(classifier, model)
    splits = splits_at(data, columns, typed=typed)
    is_for_colours = classifier.model.config.channels == COLOURS
    may_change = hints.channels is not None or is_for_colours
    if splits.train is not None and len(splits.train) and may_change:
        classifier = adapted_to(classifier, hints.channels, splits.train, _say)

    # Length, learning rate and image size
    task = _task(preset, data, splits.train)
    size = hints.image or classifier.preprocessing.size
    # With native proportions, its size limits the number of patches, and is no image size
    if classifier.preprocessing.is_native:
        size = hints.image or classifier.model.config.image
    if task.side and not hints.image:
        # The paper's 384 is 378 for patches of 14
        size = classifier.model.config.fitting((task.side, task.side))
    # `resolve` fills in the labels. A distilled model cannot be without, so it gets the data's
    labels: tuple[str, ...] = ()
    if getattr(classifier.model.config, "pool", None) == "distilled":
        labels = numbered(Supervised().head(splits.target_kind, len(splits.labels)))
    adopted, _ = adopt(classifier, labels=labels, image=size, new_head=True)

    # Preprocessing and augmentation
    preprocessing = classifier.preprocessing
    if not preprocessing.is_native:
        preprocessing = preprocessing_for(preprocessing, size)
    if protocol:
        preprocessing = replace(preprocessing, rule="square", resize=0)
        preprocessing = changed_preprocessing(preprocessing, hints, adopted.model.config)
    augmentation = Augmentation(auto=not protocol)
    vtab = vtab_task(data)
    if preset == "vtab" and like == "paper" and vtab is None:
        # It is unknown which changes preserve the labels, so the run tests it with the model
        augmentation = replace(bit_crops(size), auto=True)
    elif preset == "vtab" and like == "paper":
        augmentation = bit_crops(size, flip=vtab not in UNMIRRORED, crop=vtab not in UNCROPPED)
    elif protocol and like == "paper":
        augmentation = bit_crops(size)
    images = Data(
        source=data,
        columns=columns,
        preprocessing=preprocessing,
        augmentation=augmentation,
        hold_out=task.hold_out,
    )
    optim = Optim("sgd", task.lr, warmup=Span(task.warmup, "steps"))
    if task.staircase:
        optim = replace(optim, schedule="staircase")
    recipe = Recipe(
        name="finetune",
        init=model,
        model=adopted.model.config,
        data=images,
        optim=optim,
        objective=Supervised(mixup=task.mixup),
        length=Span(task.steps, "steps"),
        batch=task.batch,
        micro_batch=min(task.batch, 64),
        precision="auto",
        evaluate_every=Span(max(task.steps // 5, 1), "steps"),
        save_every=Span(max(task.steps // 10, 1), "steps"),
        log_every=max(min(50, task.steps // 20), 1),
    )
    if protocol:
        images = replace(images, parts="final")
        return replace(recipe, name=f"finetune-{preset}", data=images, precision="float32")
    if preset == "quick":
        return _quick(recipe, splits, on_gpu)
    return recipe


def _say(sentence: str) -> None:
    if on_rank_0():
        say(sentence)


def _quick(recipe: Recipe, splits: Splits, on_gpu: bool) -> Recipe:
    """The recipe of "quick". Its length depends on the time available, which is unknown here: its spans are 0.

    Images are neither cropped nor mirrored: a few epochs are too short to profit from crops, and a mirrored
    sign or digit may be of another class. Classes of unequal size get equal weight.
    """
    images = len(splits.train or ())
    batch = recipe.batch
    lr = recipe.optim.lr
    if splits.target_kind == "class" and len(splits.labels) >= MANY_CLASSES:
        lr = THEIR_RATE
    if images < FEW:
        batch = SMALL_BATCH
    elif on_gpu:
        while batch < LARGEST_BATCH and 2 * batch * BATCHES <= images:
            batch *= 2
        lr *= math.sqrt(batch / recipe.batch)
    optim = replace(recipe.optim, warmup=Span(0, "steps"), lr=lr)
    objective = Supervised(loss=LOSS.get(splits.target_kind, "softmax"))
    if splits.train is not None and splits.target_kind == "class":
        counts = np.bincount(splits.train.target_array, minlength=len(splits.labels))
        if unbalanced(counts):
            objective = replace(objective, class_weights="balanced")
    unset = Span(0, "steps")
    whole = Augmentation(crop="none", flip=False)
    data = replace(recipe.data, augmentation=whole, parts="select", hold_out=0.2)
    return replace(
        recipe,
        data=replace(data, on_bad_image="skip"),
        optim=optim,
        objective=objective,
        batch=batch,
        length=unset,
        evaluate_every=unset,
        save_every=unset,
        early_stop=3,
        log_every=50,
    )


def _task(preset: str, data: str, images: Source | None) -> TransferTask:
    """The row of Table 4, or a task for the number of training images. Raises VitkitError if there are no
    training images."""
    if preset in TABLE_4:
        return TABLE_4[preset]
    if images is None or not len(images):
        raise BadData(
            f"{data} has no images to learn from, only others to measure on; name the folder of the "
            "images to learn from train"
        )
    if preset == "bit":
        return bit_hyper_rule(images)

    # Ten epochs, at least 200 steps and at most 10,000, at the model's own image size
    steps = min(max(10 * len(images) // 32, 200), 10_000)
    return TransferTask(steps, steps // 10, 0.01, batch=32, side=0)


# The choice of initial weights

STEPS = 200  # smallest number of steps of a fine-tuning that should fit into the time
BATCH = 32  # images of a step
# Rows and columns of the matrices whose product measures the speed of the machine; 2,048 on other devices
SIDES_OF_MATRICES = {"cpu": 1024, "cuda": 8192}
EFFICIENCY = 0.5  # speed of a training step relative to that product
DOWNLOAD = 10.0  # assumed speed of the connection, megabytes per second


# AugReg's weights, pre-trained on ImageNet-21k, fine-tuned on ImageNet-1k (Steiner and others 2021), on the
# Hugging Face hub; the largest first
FAMILY = tuple(
    f"timm/vit_{size}_patch16_224.augreg_in21k_ft_in1k"
    for size in ("large", "base", "small", "tiny")
)


class ChosenWeights(NamedTuple):
    """The chosen weights, and the reason."""

    model: str
    """Name or file of the weights, for `load`."""
    why: str
    """The reason, as part of a sentence."""


def choose_pretrained(minutes: float, device: torch.device, naming: str) -> ChosenWeights:
    """Choose pretrained weights if none are given: the largest model of one family that this machine has or can
    download, and can train in the time. Raises VitkitError if there is none.

    naming: the call that names a model, for the error message.
    """
    family = [row for row in map(published_called, FAMILY) if row is not None]
    fitting = _fitting(family, minutes, device)
    smaller = family[family.index(fitting) :]

    # The best fitting one is on this machine
    if fitting.is_here:
        return ChosenWeights(fitting.name, f"{fitting.name}, which is in the cache")

    # It can be downloaded
    if hub_answers():
        why = (
            f"{fitting.name}, the largest of its family that trains in {minutes:g} minutes here; "
            f"{fitting.megabytes} MB are downloaded once"
        )
        return ChosenWeights(fitting.name, why)

    # Otherwise use another one on this machine: the next smaller, then the next larger
    larger = family[: family.index(fitting)][::-1]
    for published in (*smaller, *larger):
        if published.is_here:
            why = f"{published.name}, which is in the cache; the Hugging Face hub cannot be reached"
            return ChosenWeights(published.name, why)
        file = Path(_file_of(published))
        if file.is_file():
            why = f"{file}, which is in this directory; the Hugging Face hub cannot be reached"
            return ChosenWeights(str(file), why)
    raise BadSettings(
        "no pre-trained weights: the Hugging Face hub cannot be reached, and none of vitkit's "
        f"choice are in its cache. Name a model: {naming}, where the model is a file "
        f"such as {_file_of(family[-1])}: on another machine, it is model.safetensors at "
        f"{family[-1].where} ({family[-1].megabytes} MB)"
    )


def _file_of(published: Published) -> str:
    """The name of a file of these weights that is looked for in the working directory."""
    return published.name.partition("/")[2] + ".safetensors"


def _fitting(family: Sequence[Published], minutes: float, device: torch.device) -> Published:
    """The largest model that can be downloaded and makes enough steps in the time; the smallest if none
    does."""
    speed = _speed(device)
    for published in family:
        macs = cost(named(published.model)).macs
        step = 3 * 2 * macs * BATCH / (EFFICIENCY * speed)  # forward, and twice that backward
        seconds = step * STEPS
        if not published.is_here:
            seconds += (published.megabytes or 0) / DOWNLOAD
        if seconds < 60 * minutes:
            return published
    return family[-1]


def _speed(device: torch.device) -> float:
    """Operations per second of a matrix product on this device, in its best precision. It takes a tenth of
    a second."""
    side = SIDES_OF_MATRICES.get(device.type, 2048)
    a = torch.ones(side, side, device=device)
    fastest = math.inf
    with autocast(device, pick_precision("auto", device).precision):
        for _ in range(6):
            began = time.perf_counter()
            (a @ a)[0, 0].item()
            fastest = min(fastest, time.perf_counter() - began)
    return 2 * side**3 / fastest
