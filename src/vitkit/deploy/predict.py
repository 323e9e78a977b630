"""From images to named classes with probabilities.

Legend: B images of a batch, K classes, h w pixels of what the model gets.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import (
    BadImage,
    Preprocessing,
    Source,
    default_workers,
    open_image,
    open_source,
)
from vitkit.data.engine.workers import in_order, ranges
from vitkit.data.formats.folder import find_images
from vitkit.data.formats.manifest import SUFFIXES as TABLES
from vitkit.data.stores import read_file
from vitkit.deploy.runtimes import Runtime, eager
from vitkit.weights import Classifier
from vitkit.weights.classifier import activate


class Item(NamedTuple):
    """An image to classify: its name, how to read its bytes or pixels, and the name of its true
    class if that is known."""

    name: str
    read: Callable[[], bytes | np.ndarray]
    truth: str | None = None


class Prediction(NamedTuple):
    """A model's answer to an image: the likeliest classes, best first; or an `error`, if the image
    is broken.

    If the model's activation is "none", `probabilities` are its outputs themselves.
    """

    name: str
    labels: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    truth: str | None = None
    error: str | None = None


def pictures(sources: Iterable[str], labels: Sequence[str] = ()) -> Iterator[Item]:
    """The images that names stand for: a file, all images below a folder, or the test part of a data
    set.

    Classes of a data set are called as the model's `labels` that they are, if all are among them.

    Raises ValueError if there is nothing of a name, or no image.
    """
    for name in sources:
        files = _files(Path(name))
        for file in files:
            yield Item(str(file), partial(read_file, str(file)))
        if not files:
            # A data set; or nothing, and open_source says so
            source = open_source(name)
            names = _names_of_model(source.labels, labels)
            for i in range(len(source)):
                yield Item(source.name(i), partial(_image, source, i), _in_words(source, i, names))


def _names_of_model(data: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """What a model calls each of the data's classes, as `vitkit evaluate` takes them: by name, by
    WordNet's, or by position. Empty if not all are among the model's."""
    from vitkit.evaluate.labels import align  # with all evaluators: files need none of them

    if not data or not labels:
        return {}
    try:
        classes = align(data, labels).classes.tolist()
    except ValueError:
        return {}
    return {name: labels[k] for name, k in zip(data, classes, strict=True)}


def _in_words(source: Source, i: int, names: dict[str, str]) -> str | None:
    """The true class of an example, as the model calls it if it has such a class."""
    answer = source.answer(i)
    return names.get(answer, answer)


def _files(path: Path) -> list[Path]:
    """The image files of a path: itself, or those of a folder. None if it is a table of images, or
    does not exist."""
    if path.is_dir():
        names, _ = find_images(path)
        return [path / name for name in names]
    if path.is_file() and path.suffix.lower() not in (*TABLES, ".parquet"):
        return [path]
    return []


def _image(source: Source, i: int) -> bytes | np.ndarray:
    """The image of an example, without its target."""
    image, _ = source[i]
    return image


def predict(
    classifier: Classifier | Runtime,
    items: Iterable[Item | str | Path],
    top: int = 5,
    batch: int = 32,
    device: str = "auto",
    workers: int = -1,
) -> Iterator[Prediction]:
    """Classify images: yields a Prediction for each, in order. A broken image yields its `error`.

    Items are file names, or what `pictures` yields. Every image goes through the classifier's own
    preprocessing. PyTorch runs a copy of a Classifier on `device`, in float32, and the given one
    stays where it is; another Runtime, such as `eager` makes, has a device and a precision of its
    own.

    workers: processes that read and decode a list's images while the model computes; 0 is none
    besides this one, -1 as many as suit the CPUs and the images. Those of an iterator are read here,
    a batch at a time.

    Raises ValueError for a model without a head, and for one that answers for every token;
    WorkerDied when a worker is killed.
    """
    if top < 1 or batch < 1:
        raise ValueError(f"top is {top} and batch {batch}; both must be at least 1")
    if workers < -1:
        raise ValueError(f"workers is {workers}; it is 0 or more, or -1")
    if isinstance(items, str | Path):
        raise ValueError(
            f"the images are {str(items)!r}; give a list of names, such as [{str(items)!r}]"
        )
    if not classifier.labels:
        raise ValueError("the model has no classification head, so it names no classes")
    runtime = classifier
    if isinstance(classifier, Classifier):
        runtime = eager(classifier, device)
    batches = _in_turn(items, runtime.preprocessing, batch)
    if isinstance(items, Sequence):
        batches = _ahead(items, runtime.preprocessing, batch, workers)
    for chunk, prepared in batches:
        yield from _classify(runtime, chunk, prepared, top)


class _Prepared:
    """The images of a batch of items, ready for the model."""

    def __init__(self, items: Iterable[Item], preprocessing: Preprocessing):
        self.errors: dict[int, str] = {}
        """By the number of a broken item, what is wrong with it."""
        self.rows: list[int] = []
        """The numbers of the others."""
        images = []
        for i, item in enumerate(items):
            try:
                images.append(_prepare(item, preprocessing).numpy())
                self.rows.append(i)
            except BadImage as error:
                self.errors[i] = str(error)
        # An array, not a tensor, travels from a worker through a pipe: without /dev/shm
        self.images = np.array(images, dtype=np.uint8)
        """uint8 (B, 3, h, w)"""


_Batches = Iterator[tuple[list[Item], _Prepared]]


def _in_turn(
    items: Iterable[Item | str | Path], preprocessing: Preprocessing, batch: int
) -> _Batches:
    """The items in batches, each prepared when it is asked for."""
    items = map(_item, items)
    while chunk := list(islice(items, batch)):
        yield chunk, _Prepared(chunk, preprocessing)


def _ahead(
    items: Sequence[Item | str | Path], preprocessing: Preprocessing, batch: int, workers: int
) -> _Batches:
    """The items in batches that worker processes prepare while the model computes."""
    items = [_item(item) for item in items]
    chunks = ranges(len(items), batch)
    if workers < 0:
        workers = default_workers()
        if len(chunks) < 2:  # while one batch is decoded there is nothing to compute
            workers = 0
    task = partial(_prepare_rows, items, preprocessing)
    prepared = in_order(task, chunks, min(workers, len(chunks)))
    with closing(prepared):
        for rows, batch_of in zip(chunks, prepared, strict=True):
            yield items[rows.start : rows.stop], batch_of


def _prepare_rows(items: Sequence[Item], preprocessing: Preprocessing, rows: range) -> _Prepared:
    """Some of the items, by their numbers: a worker has all of them."""
    return _Prepared(items[rows.start : rows.stop], preprocessing)


def _item(item: Item | str | Path) -> Item:
    """The item of a file's name."""
    if isinstance(item, Item):
        return item
    return Item(str(item), partial(read_file, str(item)))


def _prepare(item: Item, preprocessing: Preprocessing) -> Tensor:
    """The image as uint8 (3, h, w). Raises BadImage, with a sentence, if it cannot be read."""
    try:
        return preprocessing(open_image(item.read(), item.name))
    except OSError as error:
        raise BadImage(f"{item.name} cannot be read: {error}") from error


def _classify(
    runtime: Runtime, items: Sequence[Item], prepared: _Prepared, top: int
) -> Iterator[Prediction]:
    """The predictions of one batch, in the items' order."""
    answers = {}
    if prepared.rows:
        images = torch.from_numpy(prepared.images)
        answers = dict(zip(prepared.rows, _likeliest(runtime, images, top), strict=True))

    errors = prepared.errors
    for i, item in enumerate(items):
        if i not in errors and not isfinite(sum(answers[i][1])):
            errors[i] = (
                f"{item.name}: the model's outputs are not finite; its weights may be damaged"
            )
        if i in errors:
            yield Prediction(item.name, truth=item.truth, error=errors[i])
        else:
            labels, probabilities = answers[i]
            yield Prediction(item.name, labels, probabilities, item.truth)


def _likeliest(
    runtime: Runtime, images: Tensor, top: int
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    """uint8 (B, 3, h, w) -> for each image its likeliest classes and their probabilities."""
    with torch.inference_mode():
        probabilities = activate(runtime.logits(images), runtime.activation)  # (B, K)
    best = probabilities.topk(min(top, probabilities.shape[-1]))
    for classes, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        yield tuple(runtime.labels[k] for k in classes), tuple(values)
