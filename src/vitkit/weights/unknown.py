"""When a classifier's answer is none: the image is unlike all that it has learned from, or no class
is likely. And which classes an answer leaves open.

What is here only applies the limits; `evaluation/probes/unknown.py` fits them, to answers that are left out.
In a model directory they are a file of their own, which other libraries do not look at.

Legend: B images of a batch, K classes, F width of the features, D numbers that are compared of them, R
directions that they are compared in.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import Tensors
from vitkit.weights.files.directory import UNKNOWN

NUMBERS = ("first", "far", "sure", "typical", "rejected", "coverage")
SWITCHES = ("unit", "of_nearest")
LIMITS = ("limit", "least")  # a number for each class
# What models that were saved earlier have not, and what is meant by that
EARLIER = {"first": 0.0, "typical": math.inf, "unit": 0.0, "of_nearest": 0.0}
SHORTEST = 1e-6  # length of features that is divided by


@dataclass(frozen=True, eq=False)
class Unknown:
    """Limits for answers to images that a classifier has not learned from."""

    means: Tensor
    """The mean of each class, whitened: float32 (K, R)."""
    whitening: Tensor
    """Features x -> x whitening, in which the images of a class lie equally far around its mean in
    all directions: float32 (D, R)."""
    centre: Tensor
    """What is subtracted before they are whitened: float32 (D,)."""
    first: int
    """Which feature is the first that is compared, if a head reads more than these."""
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
    unit: bool = True
    """Whether they are compared by direction and the logarithm of their length, D - 1 features and one
    number. In models saved earlier they are compared as they are, D features."""
    of_nearest: bool = True
    """Whether the limit of the class to which an image is least strange decides. In models saved earlier
    an image is known if it is within the limit of any class."""
    typical: float = math.inf
    """The logit from which on an image is no less strange: a high one is no proof that it is known."""

    def strangeness(self, features: Tensor, logits: Tensor) -> Tensor:
        """How strange images are to each class: (B, F), (B, K) -> (B, K); or to all classes
        together, (B, 1), for a model saved before limits were by class. It is computed in float32, or in
        float64 if the features are: where they hardly vary, their directions differ by little more than
        float32 tells apart."""
        kind = torch.promote_types(features.dtype, torch.float32)
        features = features.to(kind)[:, self.first : self.first + len(self.centre) - self.unit]
        if self.unit:
            features = direction_and_length(features)
        rows = (features - self.centre) @ self.whitening.to(kind)  # (B, R)
        distance = _distances(rows, self.means.to(kind))
        logits = logits.to(kind)
        if self.typical < math.inf:
            logits = logits.clamp(max=self.typical)
        if not self.limit.ndim:
            distance = distance.amin(1, keepdim=True)
            logits = logits.amax(1, keepdim=True)
        return self.far * distance - self.sure * logits

    def excess(self, features: Tensor, logits: Tensor) -> Tensor:
        """By how much images exceed the limit of the class to which they are least strange: (B,
        F), (B, K) -> (B,). Above 0 an image is unknown."""
        strangeness = self.strangeness(features, logits)
        if not self.of_nearest:
            return (strangeness - self.limit).amin(1)
        return strangeness.amin(1) - self.limit[strangeness.argmin(1)]

    def is_unknown(self, features: Tensor, logits: Tensor) -> Tensor:
        """Whether images are strange to all classes: (B, F), (B, K) -> bool (B,)."""
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


def direction_and_length(features: Tensor) -> Tensor:
    """Features scaled to length 1, and the logarithm of their length after them: (B, D - 1) -> (B, D).

    An image without content, such as one of a single colour, has short features, which lie close to every
    mean; their direction does not.
    """
    length = features.square().sum(1, keepdim=True).sqrt().clamp(min=SHORTEST)
    return torch.cat([features / length, length.log()], 1)


def _distances(rows: Tensor, means: Tensor) -> Tensor:
    """How far each row is from each mean, (B, R) and (K, R) -> (B, K), in operations that every format
    of exported files has. What is compared is centred, so that little is lost to rounding."""
    squares = rows.square().sum(1, keepdim=True) + means.square().sum(1)
    return (squares - 2 * rows @ means.mT).clamp(min=0).sqrt()


def read_unknown(tensors: Tensors, classes: int) -> Unknown | None:
    """The limits in a file; None without tensors. Raises VitkitError if they do not fit the model."""
    if not tensors:
        return None
    names = [field.name for field in fields(Unknown)]
    shapes = {name: list(lazy.shape) for name, lazy in tensors.items()}
    needed = set(names) - {"centre", *EARLIER}
    scalars = [*NUMBERS, *SWITCHES]
    if not needed <= set(tensors) <= set(names) or any(shapes.get(name) for name in scalars):
        raise BadWeights(
            f"{UNKNOWN} holds {', '.join(sorted(tensors))[:200]}, not {', '.join(names)}"
        )
    if len(shapes["means"]) != 2 or shapes["means"][0] != classes:
        raise BadWeights(
            f"{UNKNOWN} is for {shapes['means']} means, and the model has {classes} classes"
        )
    if len(shapes["whitening"]) != 2 or shapes["whitening"][1] != shapes["means"][1]:
        raise BadWeights(f"{UNKNOWN} compares features in {shapes['whitening']} directions")
    values: dict[str, Any] = {name: lazy.read() for name, lazy in tensors.items()}
    width = shapes["whitening"][0]
    values.setdefault("centre", torch.zeros(width))
    for name, value in EARLIER.items():
        values.setdefault(name, torch.tensor(value))
    if values["centre"].shape != (width,):
        raise BadWeights(f"{UNKNOWN} has a centre of another width than its features, {width}")
    for name in ("means", "whitening", "centre"):
        values[name] = values[name].float()
        if not values[name].isfinite().all():
            raise BadWeights(f"{UNKNOWN} holds NaN or infinity")
    for name in LIMITS:
        if shapes[name] not in ([], [classes]):
            raise BadWeights(
                f"{UNKNOWN} has limits of shape {shapes[name]}, and the model has {classes} classes"
            )
        values[name] = values[name].double()
        if values[name].isnan().any():
            raise BadWeights(f"{UNKNOWN} holds NaN")
    for name in NUMBERS:
        values[name] = values[name].item()
        if math.isnan(values[name]):
            raise BadWeights(f"{UNKNOWN} says of {name!r} that it is NaN, which is no number")
    for name in SWITCHES:
        value = values[name].item()
        if value not in (0, 1):
            raise BadWeights(f"{UNKNOWN} says {value} of {name!r}, which is 0 or 1")
        values[name] = bool(value)
    if values["of_nearest"] and not values["limit"].ndim:
        raise BadWeights(f"{UNKNOWN} has one limit, and is to take that of the nearest class")
    first = values["first"]
    if not (math.isfinite(first) and first >= 0 and first % 1 == 0):
        raise BadWeights(f"{UNKNOWN} says that feature {first} is the first that is compared")
    values["first"] = int(first)
    return Unknown(**values)
