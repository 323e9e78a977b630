"""`vitkit doctor --model`: checks whether a model's normalisation suits its weights; and with
--data, whether the model can memorise a few of the images, and how fast it would train on them.
Each check takes seconds, or a minute at most."""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from vitkit.apps.doctor.finding import Fact
from vitkit.data import (
    Augmentation,
    Preprocessing,
    Source,
    Splits,
    default_workers,
    eval_batches,
    is_elsewhere,
    leads_elsewhere,
    one_per_cpu,
    subset,
    train_batches,
)
from vitkit.system.console.text import as_word, counted
from vitkit.system.functions.steps import FILE, Placeholder, step
from vitkit.weights import STATISTICS, Classifier

BATCH = 16  # images that a model has to memorise
PATIENCE = 40.0  # longest time for memorising, seconds
STEPS = 60  # largest number of steps for memorising
TIMED = 4.0  # seconds for measuring each speed
LEARNED = 0.1  # a batch is memorised below this share of the first loss
WAITS = 0.8  # loading below this share of the computing speed makes the model wait
JUDGED = 64  # images for testing the normalisation
LOSS: dict[str, Literal["softmax", "sigmoid", "squared"]] = {
    "class": "softmax",
    "classes": "sigmoid",
    "number": "squared",
}


@dataclass(frozen=True)
class Examined:
    """A model, and the images for the checks."""

    data: str
    splits: Splits
    classifier: Classifier
    device: torch.device


def examine_model(name: str, classifier: Classifier, account: list[str]) -> Iterator[Fact]:
    """The findings on the preprocessing in a model's file. account: the messages of its load report."""
    guessed = [line for line in account if "`statistics=" in line]
    told = [line for line in account if line not in guessed]
    yield Fact("model", told[0])
    advice = ""
    if guessed:
        advice = f"{name} does not say how images are normalised: {guessed[0]}"
    yield Fact("preprocessing", str(classifier.preprocessing), advice)
    yield from _normalisation_of_origin(classifier)


def _normalisation_of_origin(classifier: Classifier) -> Iterator[Fact]:
    """Whether a model's normalisation is that of the weights from which its training began."""
    from vitkit.weights import load

    origin = classifier.origin.get("init", "")
    if not origin or leads_elsewhere(origin) or not Path(origin).exists():
        return
    theirs = load(origin, quiet=True).preprocessing
    ours = classifier.preprocessing
    if (theirs.mean, theirs.std) == (ours.mean, ours.std):
        yield Fact("mean and deviation", f"as {origin} has them, where it began")
        return
    advice = (
        f"the weights of {origin} are for mean {theirs.mean} and std {theirs.std}, these for "
        f"{ours.mean} and {ours.std}: train again without `data.preprocessing.mean` and .std"
    )
    yield Fact("mean and deviation", f"other than in {origin}, where it began", advice)


def examine_learning(examined: Examined) -> Iterator[Fact]:
    """Whether the model can memorise a few of the images, and whether training would wait for images."""
    from vitkit.objectives import Supervised
    from vitkit.weights import adopt

    splits = examined.splits
    train = splits.train
    if train is None or splits.target_kind == "none":
        return
    if examined.classifier.preprocessing.is_native:
        yield Fact(
            "learning", "not tried: a training reads images of one size, and this model others"
        )
        return
    yield from _other_normalisations(examined)

    # The model with a new head for these images
    objective = Supervised(loss=LOSS[splits.target_kind])
    outputs = objective.head(splits.target_kind, len(splits.labels))
    labels = tuple(splits.labels)
    if len(labels) != outputs:
        labels = tuple(map(str, range(outputs)))
    adopted, _ = adopt(examined.classifier, labels=labels, new_head=True)
    learner = objective.learner(adopted.model, adopted.preprocessing).to(examined.device)
    learner.prepare(train)
    learner.train()

    yield _memorising(examined, learner, adopted.preprocessing)
    yield _speeds(examined, learner, adopted.preprocessing)


@torch.inference_mode()
def _other_normalisations(examined: Examined) -> Iterator[Fact]:
    """Whether another usual normalisation gives a higher accuracy, if the model has these classes:
    the most common mistake with published weights."""
    classifier = examined.classifier
    source = examined.splits.test or examined.splits.val or examined.splits.train
    assert source is not None  # the caller has checked that there are images
    classes = {label: number for number, label in enumerate(classifier.labels)}
    if source.target_kind != "class" or not set(source.labels) <= classes.keys():
        return
    numbers = np.array([classes[label] for label in source.labels])
    indices = np.linspace(0, len(source) - 1, min(JUDGED, len(source))).astype(int)
    own = classifier.preprocessing
    (batch,) = eval_batches(subset(source, indices), own, len(indices), 0)
    truth = torch.from_numpy(numbers)[batch.targets]
    model = classifier.model.to(examined.device).eval()

    def share_right(mean: tuple, std: tuple) -> float:
        images = replace(own, mean=mean, std=std).normalise(batch.images.to(examined.device))
        return (model(images).argmax(1).cpu() == truth).double().mean().item()

    right = share_right(own.mean, own.std)
    value = f"{right:.0%} of {len(indices)} images are answered right"
    advice = ""
    for name, statistics in STATISTICS.items():
        other = share_right(statistics["mean"], statistics["std"])
        if other > right + 2 * math.sqrt(0.25 / len(indices)):
            advice = (
                f"with the mean and deviation called {name}, {other:.0%} are answered right: give "
                f"`statistics={name!r}`"
            )
    yield Fact("as it normalises images", value, advice)


def _memorising(examined: Examined, learner: torch.nn.Module, preprocessing: Preprocessing) -> Fact:
    """Whether the loss of one batch falls to nearly zero."""
    train = examined.splits.train
    assert train is not None  # examine_learning requires it
    unchanged = Augmentation(crop="none", flip=False)
    batches = train_batches(train, unchanged, preprocessing, min(BATCH, len(train)), 0, 0, 0)
    with closing(batches):
        batch = next(batches)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.01, momentum=0.9)
    images = preprocessing.normalise(batch.images.to(examined.device))
    targets = batch.targets.to(examined.device)
    keys = torch.arange(len(images), device=examined.device)

    losses: list[float] = []
    began = time.monotonic()
    while len(losses) < STEPS and time.monotonic() - began < PATIENCE:
        loss = learner(images, targets, keys)
        losses.append(loss.item())
        if losses[-1] < LEARNED * losses[0]:
            break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
    value = f"loss {losses[0]:.3g} -> {losses[-1]:.3g} in {counted(len(losses) - 1, 'step')}"
    advice = ""
    if not losses[-1] < losses[0] / 2:
        advice = (
            f"the model does not even learn {len(images)} images by heart, so something is wrong "
            "before any question of rates: look at the labels (vitkit data review), at identical "
            "images with other labels, and at the model's preprocessing"
        )
    return Fact(f"learning {len(images)} images by heart", value, advice)


def _speeds(examined: Examined, learner: torch.nn.Module, preprocessing: Preprocessing) -> Fact:
    """Throughput of loading and of computing, and which of them limits training."""
    # Loading, as in training
    train = examined.splits.train
    assert train is not None  # examine_learning requires it
    workers = default_workers(train)
    readers = workers if is_elsewhere(train) else 1
    batches = train_batches(
        train, Augmentation(), preprocessing, BATCH, 0, 0, workers, readers=readers
    )
    with closing(batches):
        batch = next(batches)  # waits until the workers have started
        loading = _rate(batches)

    # Computing
    images = preprocessing.normalise(batch.images.to(examined.device))
    targets = batch.targets.to(examined.device)
    keys = torch.arange(len(images), device=examined.device)

    def steps() -> Iterator[None]:
        while True:
            learner(images, targets, keys).backward()
            if examined.device.type == "cuda":
                torch.cuda.synchronize()
            yield None

    computing = _rate(steps())
    value = f"{loading:,.0f} images/s are loaded, {computing:,.0f} computed"
    advice = ""
    if loading < WAITS * computing:
        advice = (
            "the model would wait for images: `data.keep_decoded=GB` keeps them decoded in memory, "
            f"{step('pack', examined.data, Placeholder('dest'), side=256)} shrinks them once, and "
            f"`data.workers` (it is {workers}) decodes more at a time where there are more CPUs"
        )
    return Fact("speed", value, advice)


def _rate(batches: Iterator) -> float:
    """Images per second of an infinite iterator of batches of BATCH."""
    began = time.monotonic()
    count = 0
    for _ in islice(batches, 10_000):
        count += BATCH
        if time.monotonic() - began > TIMED:
            break
    return count / (time.monotonic() - began)


LOOKED_AT = 4_000  # largest number of images per part that are decoded for finding duplicates
UNEVEN = 10  # ratio of the largest to the smallest class from which classes are unbalanced


def examine_data(data: str, splits: Splits) -> Iterator[Fact]:
    """Numbers of images, class balance, broken images and duplicates of a data set."""
    parts = splits.sources
    word = as_word(data)
    counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
    yield Fact("images", counts)
    train = splits.train
    if train is None:
        yield Fact("training images", "none", f"{data} has nothing to train on")
        return
    yield from _classes(word, train)
    yield from _looks(data, parts)


def _classes(word: str, train: Source) -> Iterator[Fact]:
    """The number of classes, and their balance."""
    from vitkit.curation.statistics import class_counts

    if train.target_kind == "none":
        advice = (
            f"put the images of {word} into a folder for each class to train a classifier; without, "
            f"vitkit train paper.masked_patches {word} learns from them"
        )
        yield Fact("labels", "none", advice)
        return
    if train.target_kind != "class":
        yield Fact(
            "labels", {"classes": "several an image", "number": "a number each"}[train.target_kind]
        )
        return
    numbers = class_counts(train)
    ranked = sorted(zip(numbers, train.labels, strict=True))
    (least, rare), (most, common) = ranked[0], ranked[-1]
    value = f"{counted(len(train.labels), 'class')}, of {least:,} ({rare}) to {most:,} ({common}) images"
    advice = ""
    if len(train.labels) == 1:
        advice = f"there is only one class, {rare}: add a folder with images of another class"
    elif least < 2:
        advice = f"{rare} has {counted(least, 'training image')}: add some, or remove the class"
    elif most >= UNEVEN * least:
        advice = (
            f"{common} has {most // least} times as many images as {rare}: compare by "
            "balanced_accuracy, which vitkit evaluate prints, and add images of the rare classes"
        )
    yield Fact("classes", value, advice)


def _looks(data: str, parts: dict[str, Source]) -> Iterator[Fact]:
    """Broken images, and duplicates between the training part and the others, among up to
    LOOKED_AT of each part."""
    from vitkit.curation import near_duplicates, survey
    from vitkit.system.console.progress import bar

    surveys = {}
    for name, part in parts.items():
        every = len(part) // LOOKED_AT + 1
        some = subset(part, range(0, len(part), every))
        surveys[name] = survey(some, one_per_cpu(), bar(f"looking at {name}"))
    looked = sum(len(each.source) for each in surveys.values())

    broken = sum(len(each.bad) for each in surveys.values())
    advice = ""
    if broken == looked:
        advice = f"no image of {as_word(data)} can be decoded: copy or download them again"
    elif broken:
        advice = (
            f"{step('stats', data)} names the broken images; `on_bad_image='skip'` leaves them out"
        )
    yield Fact("broken images", f"{broken:,} of {looked:,}", advice)

    pairs = 0
    for name in surveys:
        if name != "train":
            pairs += len(near_duplicates(surveys["train"], surveys[name]))
    advice = ""
    if pairs:
        advice = (
            f"{counted(pairs, 'training image')} can be seen in a held-out part too, which "
            f"flatters the accuracy: {step('stats', data, exclude=FILE)} lists them for "
            "`data.exclude=FILE`"
        )
    yield Fact("duplicates between parts", f"{pairs:,} of {looked:,}", advice)
