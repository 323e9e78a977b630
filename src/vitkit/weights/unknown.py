"""When a classifier's answer is none: the image is unlike all that it has learned from, or no class
is likely. And which classes an answer leaves open.

What is here only applies the limits; `evaluation/probes/unknown.py` fits them, to answers that are left out.
In a model directory they are a file of their own, which other libraries do not look at.

Legend: B images of a batch, K classes, D width of the features, R of what they are compared in.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from vitkit.weights.files import Tensors
from vitkit.weights.files.directory import UNKNOWN

NUMBERS = ("far", "sure", "limit", "least", "rejected", "coverage")


@dataclass(frozen=True, eq=False)
class Unknown:
    """Limits for answers to images that a classifier has not learned from."""

    means: Tensor
    """The mean of each class, whitened: float32 (K, R)."""
    whitening: Tensor
    """Features x -> x whitening, in which the images of a class lie equally far around its mean in
    all directions: float32 (D, R)."""
    far: float
    """What the distance to the nearest mean is multiplied by,"""
    sure: float
    """and what the highest logit is, before it is subtracted: then both vary equally."""
    limit: float
    """An image is unknown from there on; infinite if too few images were learned from to tell."""
    least: float
    """A class is left open from this probability on."""
    rejected: float = 0.05
    """The share of images of the known classes that are called unknown."""
    coverage: float = 0.95
    """How often, at least, the right class of an image is among those that are left open."""

    def strangeness(self, features: Tensor, logits: Tensor) -> Tensor:
        """How unknown images are: (B, D), (B, K) -> (B,)."""
        rows = features.float() @ self.whitening  # (B, R)
        distance = torch.cdist(rows, self.means).amin(1)
        return self.far * distance - self.sure * logits.float().amax(1)

    def is_unknown(self, features: Tensor, logits: Tensor) -> Tensor:
        """Whether images are: (B, D), (B, K) -> bool (B,)."""
        return self.strangeness(features, logits) > self.limit

    def is_open(self, probabilities: Tensor) -> Tensor:
        """Which classes are left open, the likeliest always: (B, K) -> bool (B, K)."""
        highest = probabilities.amax(1, keepdim=True)
        return (probabilities >= self.least) | (probabilities == highest)

    def tensors(self) -> dict[str, Tensor]:
        """Everything as tensors, for the file of a model directory; `read_unknown` is the way back."""
        numbers = {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in NUMBERS}
        return {"means": self.means, "whitening": self.whitening, **numbers}


def read_unknown(tensors: Tensors, classes: int) -> Unknown | None:
    """The limits in a file; None without tensors. Raises ValueError if they do not fit the model."""
    if not tensors:
        return None
    names = [field.name for field in fields(Unknown)]
    shapes = {name: lazy.shape for name, lazy in tensors.items()}
    if sorted(tensors) != sorted(names) or any(shapes[name] for name in NUMBERS):
        raise ValueError(
            f"{UNKNOWN} holds {', '.join(sorted(tensors))[:200]}, not {', '.join(names)}"
        )
    if len(shapes["means"]) != 2 or shapes["means"][0] != classes:
        raise ValueError(
            f"{UNKNOWN} is for {shapes['means']} means, and the model has {classes} classes"
        )
    if len(shapes["whitening"]) != 2 or shapes["whitening"][1] != shapes["means"][1]:
        raise ValueError(f"{UNKNOWN} compares features in {shapes['whitening']} directions")
    values = {name: tensors[name].read() for name in names}
    for name in ("means", "whitening"):
        values[name] = values[name].float()
        if not values[name].isfinite().all():
            raise ValueError(f"{UNKNOWN} holds NaN or infinity")
    for name in NUMBERS:
        values[name] = values[name].item()
    return Unknown(**values)
