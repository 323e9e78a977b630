"""From images to named classes with probabilities."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import BadImage, Preprocessing, Source, open_image, open_source
from vitkit.data.formats.folder import find_images
from vitkit.data.formats.manifest import SUFFIXES as TABLES
from vitkit.deploy.runtimes import Runtime, eager
from vitkit.weights import Classifier
from vitkit.weights.classifier import activate


class Item(NamedTuple):
    """An image to classify: its name, how to get its bytes or pixels, and its class's name where that is known."""

    name: str
    read: Callable[[], bytes | np.ndarray]
    truth: str | None = None


class Prediction(NamedTuple):
    """What a model says of an image: the likeliest classes, best first, or `error` when the image is broken.

    Where the model's activation is "none", the numbers are its outputs, not probabilities.
    """

    name: str
    labels: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    truth: str | None = None
    error: str | None = None


def pictures(sources: Iterable[str]) -> Iterator[Item]:
    """The images that are meant: files, every image below a folder, or the test part of a table or of "digits".

    Raises ValueError for a source where there is nothing, or no image.
    """
    for name in sources:
        path = Path(name)
        if path.is_dir():
            files = [path / file for file in find_images(path)[0]]
        elif path.is_file() and path.suffix.lower() not in (*TABLES, ".parquet"):
            files = [path]
        else:
            files = []
        if files:
            yield from (Item(str(file), file.read_bytes) for file in files)
            continue
        source = open_source(name)  # a table, or an error that says what is not there
        for i in range(len(source)):
            yield Item(source.name(i), partial(_image, source, i), source.answer(i))


def _image(source: Source, i: int) -> bytes | np.ndarray:
    return source[i][0]


def predict(
    classifier: Classifier | Runtime,
    items: Iterable[Item | str | Path],
    top: int = 5,
    batch: int = 32,
    device: str = "auto",
) -> Iterator[Prediction]:
    """Classify images: one Prediction for each, in order. They are read as they are needed; a broken one yields its `error`.

    Items are file names, or what `pictures` yields. Every image goes through the classifier's own preprocessing. A
    Classifier is run by PyTorch on `device`; a Runtime has chosen its own. Raises ValueError for a
    model without a head, and for one that answers for every token.
    """
    if top < 1 or batch < 1:
        raise ValueError(f"top is {top} and batch {batch}; both must be at least 1")
    if not classifier.labels:
        raise ValueError("the model has no classification head, so it names no classes")
    if isinstance(classifier, Classifier):
        check_answer(classifier)
    runtime = eager(classifier, device) if isinstance(classifier, Classifier) else classifier
    items = map(_item, items)
    while chunk := list(islice(items, batch)):
        yield from _classify(runtime, chunk, top)


def check_answer(classifier: Classifier) -> None:
    """Raises ValueError for a model that answers for each of its tokens: an image has one answer here."""
    if not classifier.model.config.pools:
        raise ValueError(
            'the model gives an answer for every token (its pool is "none"), and here an image has one; '
            "use its logits from Python"
        )


def _item(item: Item | str | Path) -> Item:
    return item if isinstance(item, Item) else Item(str(item), Path(item).read_bytes)


def _classify(runtime: Runtime, items: Sequence[Item], top: int) -> Iterator[Prediction]:
    """The predictions of one batch."""
    prepared = [_prepare(item, runtime.preprocessing) for item in items]
    images = [image for image in prepared if isinstance(image, Tensor)]
    answers = iter(())
    if images:
        answers = _likeliest(runtime, torch.stack(images), top)
    for item, image in zip(items, prepared, strict=True):
        if isinstance(image, Tensor):
            labels, probabilities = next(answers)
            yield Prediction(item.name, labels, probabilities, item.truth)
        else:
            yield Prediction(item.name, truth=item.truth, error=image)


def _prepare(item: Item, preprocessing: Preprocessing) -> Tensor | str:
    """The image as uint8 (3, h, w), or the sentence that says why there is none."""
    try:
        return preprocessing(open_image(item.read(), item.name))
    except BadImage as error:
        return str(error)
    except OSError as error:
        return f"{item.name} cannot be read: {error}"


def _likeliest(
    runtime: Runtime, images: Tensor, top: int
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    """uint8 (B, 3, h, w) -> for each image its likeliest classes and their probabilities."""
    with torch.inference_mode():
        probabilities = activate(runtime.logits(images), runtime.activation)  # (B, K)
    best = probabilities.topk(min(top, probabilities.shape[-1]))
    for classes, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        yield tuple(runtime.labels[k] for k in classes), tuple(values)
