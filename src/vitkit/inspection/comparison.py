"""Do two models compute the same? Layer by layer, on images.

That is how users check a conversion, ours or their own.
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
    """How much a layer of one model differs from the same layer of another, over all images."""

    name: str
    """"embedding", "block 1", ..., "features" or "logits"."""
    largest: float
    """The largest difference between two numbers."""
    scale: float
    """The largest number of the first model's, to judge the difference by."""


class Comparison(NamedTuple):
    """How closely two models agree on some images."""

    images: int
    """How many there were."""
    layers: tuple[ComparedLayer, ...]
    """In order, those that both models have in the same shape."""
    same_top: int
    """Number of images with the same most likely class in both; a tie counts as the same."""
    ties: int = 0
    """Number of images with another most likely class in the second model, whose logit in the first
    is the highest too, to the tolerance."""


def compare_models(
    first: Classifier,
    second: Classifier,
    pictures: Iterable[Picture],
    batch: int = 16,
    tolerance: float = 1e-4,
) -> Comparison:
    """Run both models on every picture, each with its own preprocessing, `batch` at a time.

    Two classes whose logits in the first model differ by the tolerance at most are a tie.

    Classes are compared by name: if both models have the same names in other orders, the second's
    logits are brought into the first's. Logits of other names are compared by position, and the
    most likely class by its name all the same. Raises VitkitError if there is no picture, and for a
    model that gives an answer for every token.
    """
    for classifier in (first, second):
        config = classifier.model.config
        if classifier.labels and not config.pools:
            pool = getattr(config, "pool", "none")
            raise Unsupported(
                f'a model gives an answer for every token (its pool is "{pool}"), and here an image has one'
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

        # The largest difference in every layer so far
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
    """Where each of these labels is among the others; None unless the names are the same and each
    is there once."""
    if set(labels) != set(others) or not len(set(labels)) == len(labels) == len(others):
        return None
    positions = {label: i for i, label in enumerate(others)}
    return [positions[label] for label in labels]


def states_of(classifier: Classifier, pictures: list[Picture]) -> dict[str, Tensor]:
    """The states of a model for pictures, by layer and in order, float32 on the CPU."""
    images = classifier.batch(pictures)
    if images.ndim != 4:
        raise Unsupported(
            "the pictures have several proportions, at which this model reads them: layers are compared on "
            "pictures of one size; give some of the same proportions"
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
    """Which answers of another model, B names, are a tie with the most likely class of this one, whose
    logits are (B, K). A class that this model does not have is none."""
    numbers = {label: k for k, label in enumerate(classifier.labels)}
    tied = []
    for row, answer in zip(logits.numpy(), answers, strict=True):
        is_tied = False
        if answer in numbers and answer != classifier.labels[row.argmax()]:
            is_tied = bool(row.max() - row[numbers[answer]] <= tolerance)
        tied.append(is_tied)
    return tied
