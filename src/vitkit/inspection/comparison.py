"""Compare two models layer by layer, on images.

Users check a conversion this way, vitkit's or their own.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from vitkit.data import Picture
from vitkit.models import recording
from vitkit.system.errors import BadData, Unsupported
from vitkit.weights import Classifier


class ComparedLayer(NamedTuple):
    """The difference between a layer of two models, over all images."""

    name: str
    """"embedding", "block 1", ..., "features" or "logits"."""
    largest: float
    """Largest difference between two values."""
    scale: float
    """Largest value in the first model, to compare the difference with."""


class Comparison(NamedTuple):
    """How closely two models agree on some images."""

    images: int
    """Number of images."""
    layers: tuple[ComparedLayer, ...]
    """Layers that both models have in the same shape, in order."""
    same_top: int
    """Number of images with the same most likely class in both models; ties count as the same."""
    ties: int = 0
    """Number of images with another most likely class in the second model, whose logit in the first
    model is as high as the highest, up to the tolerance."""


def compare_models(
    first: Classifier,
    second: Classifier,
    pictures: Iterable[Picture],
    batch: int = 16,
    tolerance: float = 1e-4,
) -> Comparison:
    """Run both models on every picture, each with its own preprocessing, `batch` at a time.

    Two classes whose logits in the first model differ by at most the tolerance are a tie.

    Classes are compared by name: if both models have the same names in different orders, the second's
    logits are reordered. If names differ, logits are compared by position, but the most likely classes
    still by name. Raises VitkitError if there is no picture, and for a model that has an output for every
    token.
    """
    for classifier in (first, second):
        config = classifier.model.config
        if classifier.labels and not config.pools:
            pool = getattr(config, "pool", "none")
            raise Unsupported(
                f'a model has an output for every token (its pool is "{pool}"), but here an image must have one'
            )
    order = _order(first.labels, second.labels)
    layers: dict[str, ComparedLayer] = {}
    images = 0
    same_top = 0
    ties = 0
    pictures = iter(pictures)
    while chunk := list(islice(pictures, batch)):
        first_states = states_of(first, chunk)
        second_states = states_of(second, chunk)

        # The classes
        images += len(chunk)
        if first.labels and second.labels:
            first_classes = _likeliest(first, first_states["logits"])
            second_classes = _likeliest(second, second_states["logits"])
            tied = _ties(first, first_states["logits"], second_classes, tolerance)
            ties += sum(tied)
            for class_, other, is_tied in zip(first_classes, second_classes, tied, strict=True):
                same_top += class_ == other or is_tied
        if order:
            second_states["logits"] = second_states["logits"][:, order]

        # Update the largest difference of every layer
        for name, state in first_states.items():
            beside = second_states.get(name)
            if beside is not None and beside.shape == state.shape:
                largest = float((state - beside).abs().max())
                scale = float(state.abs().max())
                before = layers.get(name, ComparedLayer(name, largest, scale))
                layers[name] = ComparedLayer(
                    name, max(largest, before.largest), max(scale, before.scale)
                )
    if not images:
        raise BadData("there is no image to compare the models on")
    return Comparison(images, tuple(layers.values()), same_top, ties)


def _order(labels: tuple[str, ...], others: tuple[str, ...]) -> list[int] | None:
    """The position of each of these labels among the others; None unless both are the same unique names."""
    if set(labels) != set(others) or not len(set(labels)) == len(labels) == len(others):
        return None
    positions = {label: i for i, label in enumerate(others)}
    return [positions[label] for label in labels]


def states_of(classifier: Classifier, pictures: list[Picture]) -> dict[str, Tensor]:
    """The states of a model for pictures, by name of the layer and in order, float32 on the CPU."""
    images = classifier.batch(pictures)
    if images.ndim != 4:
        raise Unsupported(
            "the pictures have several aspect ratios, which this model keeps: layers are compared on "
            "pictures of one size; give pictures with equal aspect ratios"
        )
    with recording(classifier.model, attention=False) as record:
        logits = classifier.logits(images)
    assert record.embedding is not None and record.features is not None  # the pass is complete
    states = {"embedding": record.embedding}
    for number, state in enumerate(record.states, 1):
        states[f"block {number}"] = state
    states["features"] = record.features
    states["logits"] = logits
    return {name: state.float().cpu() for name, state in states.items()}


def _likeliest(classifier: Classifier, logits: Tensor) -> list[str]:
    """The name of each image's most likely class: (B, K) -> B names."""
    return [classifier.labels[k] for k in logits.argmax(-1).tolist()]


def _ties(
    classifier: Classifier, logits: Tensor, answers: list[str], tolerance: float
) -> list[bool]:
    """Which predictions of another model, B names, are a tie with the most likely class of this one, whose
    logits are (B, K). A class that this model does not have is not a tie."""
    numbers = {label: k for k, label in enumerate(classifier.labels)}
    tied = []
    for row, answer in zip(logits.numpy(), answers, strict=True):
        is_tied = False
        if answer in numbers and answer != classifier.labels[row.argmax()]:
            is_tied = bool(row.max() - row[numbers[answer]] <= tolerance)
        tied.append(is_tied)
    return tied
