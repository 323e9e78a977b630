"""Predictions: from images to named classes with probabilities, out-of-distribution detection, and
sets of possible classes.

Legend: B images of a batch, K classes, D width of the features, h w pixels of the model's input.
"""

import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitkit.data import Source
from vitkit.prediction.batches import Batches, Prepared, from_sequence, from_stream
from vitkit.prediction.items import Item
from vitkit.runtimes import Runtime, takes_pictures
from vitkit.runtimes.runtime import SaysUnknown
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.weights import activate_array

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor
    from typing_extensions import TypeIs

    from vitkit.weights import Classifier

    One = str | Path | bytes | np.ndarray | Tensor | Image | Item

LIKELY = 0.01  # lowest probability of a possible class that is named
BATCH = 32


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's prediction for an image: the most likely classes, best first; or an `error` if the image
    is broken. A list of predictions is a table: `pandas.DataFrame(predictions)`.

    If the model's activation is "none", `probabilities` holds the raw outputs.
    """

    name: str
    label: str | None = field(init=False)
    """The most likely class; None if the image is broken."""
    probability: float | None = field(init=False)
    """The probability of the most likely class; None if the image is broken."""
    labels: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    truth: str | None = None
    error: str | None = None
    unknown: bool | None = None
    """Whether the image is out-of-distribution, unlike everything in the training set; None if the model
    has no rejection thresholds (docs/teach.md)."""
    possible: tuple[str, ...] | None = None
    """The prediction set: all classes that the image may be; empty for an unknown image."""

    def __post_init__(self):
        # Fields, not properties: pandas makes columns of fields
        object.__setattr__(self, "label", next(iter(self.labels), None))
        object.__setattr__(self, "probability", next(iter(self.probabilities), None))


class Doubt(NamedTuple):
    """What a classifier's rejection thresholds decide about an image; all None without thresholds."""

    unknown: bool | None = None
    """Whether the image is unlike those of the training set."""
    possible: tuple[str, ...] | None = None
    """All classes that the image may be, the most likely first."""


def likely(
    labels: Sequence[str], probabilities: Sequence[float], possible: Sequence[str] | None
) -> list[str]:
    """The possible classes that are named: the most likely one, and those of `labels` with probability
    LIKELY or more, best first. Other classes may be possible only because of few training images."""
    named = list(labels[:1])
    for label, probability in zip(labels[1:], probabilities[1:], strict=True):
        if label in (possible or ()) and probability >= LIKELY:
            named.append(label)
    return named


class Answered(NamedTuple):
    """A batch of images with a model's predictions."""

    items: Sequence[Item]
    predictions: list[Prediction]
    """One for each item, in the same order."""
    prepared: Prepared
    """The images as the model received them."""


def predict_items(
    classifier: "Classifier | Runtime",
    images: "One | Source | Iterable[One]",
    top: int = 5,
    batch: int = BATCH,
    device: str = "auto",
    workers: int = -1,
) -> Iterator[Prediction]:
    """Classify one image or many: yields a Prediction for each, in order. A broken image yields its
    `error`.

        for answer in predict(classifier, "photos/"):
            print(answer.name, answer.labels[0], answer.probabilities[0])

    An image is a file's name or path, a folder (all images below it), a pattern ("**/*.jpg"), a web
    address, or a data set (its test part); the bytes of a file; a Pillow image; a numpy array
    (h, w, 3), (h, w, 4) or (h, w), or (B, h, w, 3) for several; or a tensor (3, h, w) or
    (B, 3, h, w). Arrays and tensors are uint8, or float from 0 to 1, red first. Many are a list or an
    iterator of such. Every image goes through the classifier's own preprocessing.

    PyTorch runs a copy of a Classifier on `device`, in float32, and the given one stays where it is;
    another Runtime, such as `eager` makes, has a device and a precision of its own.

    workers: processes that read and decode images while the model computes; 0 uses this process
    alone, -1 chooses a number for the CPUs and the images. An iterator is read a few batches ahead;
    for a live one, such as a camera's, use batch 1 and workers 0.

    Raises VitkitError if something is not an image, for a folder or pattern without images, for a model
    without a head or with an all-zero head, and for a model with one output per token; WorkerDied when
    a worker is killed.
    """
    from vitkit.prediction.in_memory import as_items

    check_settings(top, batch, workers)
    runtime = as_runtime(classifier, device)
    items = as_items(images, runtime.labels)
    if takes_pictures(runtime):
        batch = 1
    if isinstance(items, Sequence):
        batches = from_sequence(items, runtime.preprocessing, batch, workers)
    else:
        batches = from_stream(_batched(items, batch), runtime.preprocessing, workers)
    return _one_by_one(answers(runtime, batches, top))


def check_settings(top: int, batch: int, workers: int) -> None:
    """Raises VitkitError if numbers are out of range."""
    if top < 1:
        raise BadSettings(f"`top` is {top}; it is a number of classes, at least 1")
    if batch < 1:
        raise BadSettings(f"`batch` is {batch}; it is a number of images, at least 1")
    if workers < -1:
        raise BadSettings(f"`workers` is {workers}; it is 0 or more, or -1")


def as_runtime(classifier: "Classifier | Runtime", device: str) -> Runtime:
    """The runtime that computes the logits. Raises VitkitError if the model does not make one prediction
    per image."""
    if _is_classifier(classifier):
        from vitkit.runtimes import eager
        from vitkit.weights import check_answers

        check_answers(classifier)
        return eager(classifier, device)
    if not classifier.labels:
        raise Unsupported("the model has no classification head, so it names no classes")
    return classifier


def _is_classifier(given: "Classifier | Runtime") -> "TypeIs[Classifier]":
    """Whether `given` is a Classifier; always False if PyTorch is not loaded."""
    if "torch" not in sys.modules:
        return False
    from vitkit.weights import Classifier

    return isinstance(given, Classifier)


def _batched(items: Iterable[Item], batch: int) -> Iterator[list[Item]]:
    """The items in lists of `batch`."""
    items = iter(items)
    while chunk := list(islice(items, batch)):
        yield chunk


def _one_by_one(batches: Generator[Answered, None, None]) -> Iterator[Prediction]:
    """The predictions of all batches."""
    with closing(batches):
        for answered in batches:
            yield from answered.predictions


# The predictions of a batch


def answers(runtime: Runtime, batches: Batches, top: int) -> Generator[Answered, None, None]:
    """The predictions for each batch of images, as soon as it is prepared."""
    with closing(batches):
        for items, prepared in batches:
            yield Answered(items, predictions_of(runtime, items, prepared, top), prepared)


def predictions_of(
    runtime: Runtime, items: Sequence[Item], prepared: Prepared, top: int
) -> list[Prediction]:
    """The predictions of one batch, in the order of the items."""
    likeliest = {}
    if prepared.rows:
        likeliest_of = _likeliest(runtime, prepared.images, top)
        likeliest = dict(zip(prepared.rows, likeliest_of, strict=True))

    predictions = []
    for i, item in enumerate(items):
        error = prepared.errors.get(i)
        labels, probabilities, doubt = likeliest.get(i, ((), (), Doubt()))
        if error is None and not isfinite(sum(probabilities)):
            error = f"{item.name}: the model's outputs are not finite; its weights may be damaged"
        if error is not None:
            predictions.append(Prediction(item.name, truth=item.truth, error=error))
        else:
            known = (item.name, labels, probabilities, item.truth)
            predictions.append(Prediction(*known, None, *doubt))
    return predictions


def _likeliest(
    runtime: Runtime, images: np.ndarray, top: int
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...], Doubt]]:
    """uint8 (B, 3, h, w) -> for each image its most likely classes, their probabilities, and what the
    model's rejection thresholds decide."""
    logits, strangeness = logits_and_strangeness(runtime, images)
    probabilities = activate_array(logits, runtime.activation)  # (B, K)
    said = doubts(runtime.labels, least_open(runtime), strangeness, probabilities)
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
    values = np.take_along_axis(probabilities, best, -1)
    rows = zip(best.tolist(), values.tolist(), said, strict=True)
    for classes, values, doubt in rows:
        yield tuple(runtime.labels[k] for k in classes), tuple(values), doubt


# Rejection thresholds, evaluated in the same forward pass


def least_open(runtime: Runtime) -> np.ndarray | None:
    """The lowest probability with which a class belongs to the prediction set, (K,) or (1,); None for a
    runtime without rejection thresholds."""
    if isinstance(runtime, SaysUnknown):
        return runtime.least
    return None


def logits_and_strangeness(
    runtime: Runtime, images: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """uint8 (B, 3, h, w), or (B, M) for several sizes -> logits (B, K), and out-of-distribution scores
    (B,), above 0 for unknown images; None instead of the scores if the runtime has none."""
    preprocessing = runtime.preprocessing
    if not isinstance(runtime, SaysUnknown) or runtime.least is None:
        [logits] = preprocessing.computed(lambda group: [runtime.logits(group)], images)
        return logits, None
    logits, strangeness = preprocessing.computed(runtime.logits_and_strangeness, images)
    return logits, strangeness


def doubts(
    labels: Sequence[str],
    least: np.ndarray | None,
    strangeness: np.ndarray | None,
    probabilities: np.ndarray,
) -> list[Doubt]:
    """What the rejection thresholds decide about each of B images. labels: K names. least: (K,) or (1,).
    strangeness: (B,). probabilities: (B, K). Without thresholds every Doubt is empty."""
    if least is None or strangeness is None:
        return [Doubt()] * len(probabilities)
    highest = probabilities.max(1, keepdims=True)
    is_open = (probabilities >= least) | (probabilities == highest)  # (B, K)
    order = np.argsort(-probabilities, axis=1, kind="stable").tolist()
    found = []
    for row, image_is_unknown in enumerate((strangeness > 0).tolist()):
        possible = tuple(labels[k] for k in order[row] if is_open[row, k])
        if image_is_unknown:
            possible = ()
        found.append(Doubt(image_is_unknown, possible))
    return found
