"""Whether an image is unknown to a classifier, and which classes its answer leaves open: from the same
pass that gives the logits.

Legend: B images of a batch, K classes, D width of the features.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitkit.runtimes import Runtime

if TYPE_CHECKING:
    from torch import Tensor

    from vitkit.weights import Classifier, Unknown


class Doubt(NamedTuple):
    """What a classifier's limits say of an image; None if it has none."""

    unknown: bool | None = None
    """Whether the image is unlike those that the model has learned from."""
    possible: tuple[str, ...] | None = None
    """The classes that the answer leaves open, the likeliest first."""


def limits_of(runtime: Runtime) -> "Unknown | None":
    """The limits of the classifier that a runtime computes; None if it has none, or is no
    PyTorch."""
    classifier = _classifier_of(runtime)
    if classifier is None:
        return None
    return classifier.unknown


def logits_and_features(runtime: Runtime, images: np.ndarray) -> "tuple[np.ndarray, Tensor | None]":
    """uint8 (B, 3, h, w) -> (B, K); and what the head read, (B, D), if there are limits for it."""
    if limits_of(runtime) is None:
        return runtime.logits(images), None
    with read_by_head(_classifier_of(runtime)) as read:
        logits = runtime.logits(images)
    return logits, read[0].float()


@contextmanager
def read_by_head(classifier: "Classifier") -> Iterator["list[Tensor]"]:
    """Within it, what the head reads of each batch, (B, D), is appended to the list."""
    read = []
    head = classifier.model.head
    hook = head.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0].detach()))
    try:
        yield read
    finally:
        hook.remove()


def doubts(
    runtime: Runtime,
    logits: np.ndarray,
    features: "Tensor | None",
    probabilities: np.ndarray,
) -> list[Doubt]:
    """What the limits say of each image: (B, K), (B, D), (B, K) -> B of them."""
    limits = limits_of(runtime)
    if limits is None or features is None:
        return [Doubt()] * len(logits)
    import torch

    unknown = limits.is_unknown(features.cpu(), torch.from_numpy(logits)).tolist()
    is_open = limits.is_open(torch.from_numpy(probabilities))
    found = []
    order = np.argsort(-probabilities, axis=1, kind="stable").tolist()
    for row, image_is_unknown in enumerate(unknown):
        possible = tuple(runtime.labels[k] for k in order[row] if is_open[row, k])
        if image_is_unknown:
            possible = ()
        found.append(Doubt(image_is_unknown, possible))
    return found


def _classifier_of(runtime: Runtime) -> "Classifier | None":
    """The classifier that PyTorch computes within a runtime."""
    within = getattr(runtime, "eager", runtime)
    if hasattr(within, "unknown"):  # a Classifier itself
        return within
    return getattr(within, "classifier", None)
