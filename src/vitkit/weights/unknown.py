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

NUMBERS = ("first", "far", "sure", "rejected", "coverage")
LIMITS = ("limit", "least")  # a number for each class


@dataclass(frozen=True, eq=False)
class Unknown:
    """Limits for answers to images that a classifier has not learned from."""

    means: Tensor
    """The mean of each class, whitened: float32 (K, R)."""
    whitening: Tensor
    """Features x -> x whitening, in which the images of a class lie equally far around its mean in
    all directions: float32 (D, R)."""
    centre: Tensor
    """What is subtracted from features before they are whitened: float32 (D,)."""
    first: int
    """Which feature is the first of the D, if a head reads more than these."""
    far: float
    """What the distance to the mean of a class is multiplied by,"""
    sure: float
    """and what its logit is, before it is subtracted: then both vary equally."""
    limit: Tensor
    """An image is strange to a class from there on: float64 (K,). Infinite if too few images were
    learned from to tell. One number, of a model saved before limits were by class, is for the nearest
    mean and the highest logit."""
    least: Tensor
    """A class is left open from this probability on: float64 (K,), or one number for all."""
    rejected: float = 0.05
    """The share of images of each class that are called unknown, at most."""
    coverage: float = 0.95
    """How often, at least, the right class of an image is among those that are left open."""

    def strangeness(self, features: Tensor, logits: Tensor) -> Tensor:
        """How strange images are to each class: (B, D), (B, K) -> (B, K); or to all classes
        together, (B, 1), for a model saved before limits were by class."""
        columns = slice(self.first, self.first + len(self.centre))
        rows = (features[:, columns].float() - self.centre) @ self.whitening  # (B, R)
        distance = _distances(rows, self.means)
        logits = logits.float()
        if not self.limit.ndim:
            distance = distance.amin(1, keepdim=True)
            logits = logits.amax(1, keepdim=True)
        return self.far * distance - self.sure * logits

    def excess(self, features: Tensor, logits: Tensor) -> Tensor:
        """By how much images exceed the limit of the class to which they are least strange: (B,
        D), (B, K) -> (B,). Above 0 an image is unknown."""
        return (self.strangeness(features, logits) - self.limit).amin(1)

    def is_unknown(self, features: Tensor, logits: Tensor) -> Tensor:
        """Whether images are strange to all classes: (B, D), (B, K) -> bool (B,)."""
        return self.excess(features, logits) > 0

    def is_open(self, probabilities: Tensor) -> Tensor:
        """The classes that are left open, always including the most likely one: (B, K) -> bool (B,
        K)."""
        highest = probabilities.amax(1, keepdim=True)
        return (probabilities >= self.least) | (probabilities == highest)

    def tensors(self) -> dict[str, Tensor]:
        """Everything as tensors, for the file of a model directory; `read_unknown` is the way back."""
        tensors = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, Tensor):
                value = torch.tensor(value, dtype=torch.float64)
            tensors[field.name] = value
        return tensors


def _distances(rows: Tensor, means: Tensor) -> Tensor:
    """How far each row is from each mean, (B, R) and (K, R) -> (B, K), in operations that every format
    of exported files has. What is compared is centred, so that little is lost to rounding."""
    squares = rows.square().sum(1, keepdim=True) + means.square().sum(1)
    return (squares - 2 * rows @ means.mT).clamp(min=0).sqrt()


def read_unknown(tensors: Tensors, classes: int) -> Unknown | None:
    """The limits in a file; None without tensors. Raises ValueError if they do not fit the model."""
    if not tensors:
        return None
    names = [field.name for field in fields(Unknown)]
    shapes = {name: list(lazy.shape) for name, lazy in tensors.items()}
    needed = set(names) - {"centre", "first"}  # which models saved earlier have not
    if not needed <= set(tensors) <= set(names) or any(shapes.get(name) for name in NUMBERS):
        raise ValueError(
            f"{UNKNOWN} holds {', '.join(sorted(tensors))[:200]}, not {', '.join(names)}"
        )
    if len(shapes["means"]) != 2 or shapes["means"][0] != classes:
        raise ValueError(
            f"{UNKNOWN} is for {shapes['means']} means, and the model has {classes} classes"
        )
    if len(shapes["whitening"]) != 2 or shapes["whitening"][1] != shapes["means"][1]:
        raise ValueError(f"{UNKNOWN} compares features in {shapes['whitening']} directions")
    values = {name: lazy.read() for name, lazy in tensors.items()}
    width = shapes["whitening"][0]
    values.setdefault("centre", torch.zeros(width))
    values.setdefault("first", torch.zeros(()))
    if values["centre"].shape != (width,):
        raise ValueError(f"{UNKNOWN} has a centre of another width than its features, {width}")
    for name in ("means", "whitening", "centre"):
        values[name] = values[name].float()
        if not values[name].isfinite().all():
            raise ValueError(f"{UNKNOWN} holds NaN or infinity")
    for name in LIMITS:
        if shapes[name] not in ([], [classes]):
            raise ValueError(
                f"{UNKNOWN} has limits of shape {shapes[name]}, and the model has {classes} classes"
            )
        values[name] = values[name].double()
        if values[name].isnan().any():
            raise ValueError(f"{UNKNOWN} holds NaN")
    for name in NUMBERS:
        values[name] = values[name].item()
    values["first"] = int(values["first"])
    return Unknown(**values)
