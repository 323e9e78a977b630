"""From images to named classes with probabilities."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import BadImage, Source, open_image, open_source
from vitkit.data.formats.folder import find_images
from vitkit.data.formats.manifest import SUFFIXES as TABLES
from vitkit.system.machine import pick_device
from vitkit.weights import Classifier


class Item(NamedTuple):
    """An image to classify: its name, how to get its bytes or pixels, and its class's name where that is known."""

    name: str
    read: Callable[[], bytes | np.ndarray]
    truth: str | None = None


class Prediction(NamedTuple):
    """What a model says of an image: the likeliest classes, best first, or `error` when the image is broken."""

    name: str
    labels: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    truth: str | None = None
    error: str | None = None


def pictures(places: Iterable[str]) -> Iterator[Item]:
    """The images that are meant: files, every image below a folder, or the test part of a table or of "digits".

    Raises ValueError for a place where there is nothing, or no image.
    """
    for place in places:
        path = Path(place)
        files = [path / name for name in find_images(path)[0]] if path.is_dir() else []
        if path.is_file() and path.suffix.lower() not in (*TABLES, ".parquet"):
            files = [path]
        if files:
            yield from (Item(str(file), file.read_bytes) for file in files)
            continue
        source = open_source(place)  # a table, or a sentence about what there is not
        for i in range(len(source)):
            yield Item(source.name(i), partial(_image, source, i), source.labels[source.targets[i]])


def _image(source: Source, i: int) -> bytes | np.ndarray:
    return source[i][0]


def predict(
    classifier: Classifier,
    items: Iterable[Item | str | Path],
    top: int = 5,
    batch: int = 32,
    device: str = "auto",
) -> Iterator[Prediction]:
    """Classify images, one Prediction for each, in order, read as they are needed; a broken one yields its `error`.

    Items are file names, or what `pictures` yields. Every image goes through the classifier's own preprocessing.
    """
    if top < 1 or batch < 1:
        raise ValueError(f"top is {top} and batch {batch}; both must be at least 1")
    place = pick_device(device)
    model, prepare = classifier.model.to(place).eval(), classifier.preprocessing
    items = (
        item if isinstance(item, Item) else Item(str(item), Path(item).read_bytes) for item in items
    )
    while group := list(islice(items, batch)):
        tensors: dict[int, Tensor] = {}
        errors: dict[int, str] = {}
        for i, item in enumerate(group):
            try:
                tensors[i] = prepare(open_image(item.read(), item.name))
            except BadImage as error:
                errors[i] = str(error)
            except OSError as error:
                errors[i] = f"{item.name} cannot be read: {error}"
        found = {}
        if tensors:
            with torch.inference_mode():
                logits = model(
                    prepare.normalise(torch.stack(list(tensors.values())).to(place))
                ).float()
            best = probabilities(classifier, logits).topk(min(top, logits.shape[-1]))
            found = dict(
                zip(
                    tensors,
                    zip(best.indices.tolist(), best.values.tolist(), strict=True),
                    strict=True,
                )
            )
        for i, item in enumerate(group):
            if i in errors:
                yield Prediction(item.name, truth=item.truth, error=errors[i])
            else:
                names = tuple(classifier.labels[k] for k in found[i][0])
                yield Prediction(item.name, names, tuple(found[i][1]), item.truth)


def probabilities(classifier: Classifier, logits: Tensor) -> Tensor:
    """(B, K) logits -> (B, K): a softmax, or a sigmoid for each class where the model was trained with that loss."""
    return (
        logits.sigmoid()
        if classifier.origin.get("objective", {}).get("loss") == "sigmoid"
        else logits.softmax(-1)
    )
