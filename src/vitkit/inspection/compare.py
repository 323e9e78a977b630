"""Do two models compute the same? Layer by layer, on images: how users check a conversion, ours or their own."""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from vitkit.data.images import Picture
from vitkit.models import recording
from vitkit.weights import Classifier


class Layer(NamedTuple):
    """One place in both models."""

    name: str
    largest: float
    """Largest difference of any number, over all images."""
    scale: float
    """Largest number of the first model's there."""


class Comparison(NamedTuple):
    """What two models have in common on some images."""

    images: int
    layers: tuple[Layer, ...]
    """Embedding, blocks, features and logits, as far as both models have them in the same shape."""
    same_top: int
    """Images that both give the same likeliest class."""


def compare(
    first: Classifier, second: Classifier, pictures: Iterable[Picture], batch: int = 16
) -> Comparison:
    """Both models on every picture, each through its own preprocessing; classes meet by name.

    Raises ValueError when there is no picture, and for a model that answers for every token.
    """
    for classifier in (first, second):
        if classifier.labels and not classifier.model.config.pools:
            raise ValueError(
                'a model gives an answer for every token (its pool is "none"), and here an image has one'
            )
    pictures = iter(pictures)
    layers: dict[str, Layer] = {}
    images = 0
    same_top = 0
    while chunk := list(islice(pictures, batch)):
        states = states_of(first, chunk)
        others = states_of(second, chunk)
        for name, state in states.items():
            if name in others and others[name].shape == state.shape:
                layers[name] = _larger(layers.get(name), _difference(name, state, others[name]))
        images += len(chunk)
        if first.labels and second.labels:
            same_top += _same_classes(first, states["logits"], second, others["logits"])
    if not images:
        raise ValueError("there is no image to compare the models on")
    return Comparison(images, tuple(layers.values()), same_top)


def states_of(classifier: Classifier, pictures: list[Picture]) -> dict[str, Tensor]:
    """What a model computes for pictures on the CPU, in order: "embedding", "block 0", ..., "features", "logits"."""
    images = classifier.batch(pictures)
    with recording(classifier.model, attention=False) as record:
        logits = classifier.logits(images)
    states = {"embedding": record.embedding}
    for i, state in enumerate(record.states):
        states[f"block {i}"] = state
    states["features"] = record.features
    states["logits"] = logits
    return {name: state.float().cpu() for name, state in states.items()}


def _difference(name: str, state: Tensor, other: Tensor) -> Layer:
    largest = float((state - other).abs().max())
    return Layer(name, largest, float(state.abs().max()))


def _larger(before: Layer | None, layer: Layer) -> Layer:
    """The larger numbers of two measurements of a layer."""
    if before is None:
        return layer
    return Layer(layer.name, max(before.largest, layer.largest), max(before.scale, layer.scale))


def _same_classes(first: Classifier, logits: Tensor, second: Classifier, others: Tensor) -> int:
    """For how many images (B, K) and (B, K') name the same class."""
    names = [first.labels[k] for k in logits.argmax(-1).tolist()]
    other_names = [second.labels[k] for k in others.argmax(-1).tolist()]
    return sum(name == other for name, other in zip(names, other_names, strict=True))
