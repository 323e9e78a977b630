"""Detect that a classifier has no answer: the image differs from all images that it has learned from, or
no class is likely. And list the classes that an answer leaves open.

This module only applies the limits; `evaluation/probes/unknown.py` fits them to cross-validated
predictions. A model directory has a file of its own for them, which other libraries ignore.

Legend: B images of a batch, K classes, F width of the features, D compared numbers, R directions in which
they are compared.
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
# Defaults of fields that earlier files do not contain
EARLIER = {"first": 0.0, "typical": math.inf, "unit": 0.0, "of_nearest": 0.0}
SHORTEST = 1e-6  # lower bound of the length of features, which is a divisor


@dataclass(frozen=True, eq=False)
class Unknown:
    """Limits for the predictions of images that a classifier has not learned from."""

    means: Tensor
    """The mean of each class, whitened: float32 (K, R)."""
    whitening: Tensor
    """The matrix of x -> x whitening, after which the images of a class have equal variance around its
    mean in all directions: float32 (D, R)."""
    centre: Tensor
    """Subtracted from the compared numbers before whitening: float32 (D,)."""
    first: int
    """Index of the first compared feature, if a head reads more features than these."""
    far: float
    """Weight of the distance to the mean of a class in the out-of-distribution score."""
    sure: float
    """Weight of the class's logit, which is subtracted. With these weights both vary equally."""
    limit: Tensor
    """Rejection threshold of the score for each class: float64 (K,). Infinite if the class has too few
    images to fit it. A single number, in models saved by earlier versions, applies to the nearest mean
    and the highest logit."""
    least: Tensor
    """Lowest probability of a class that an answer leaves open: float64 (K,), or one number for all."""
    rejected: float = 0.05
    """Largest share of the images of each class that are called unknown."""
    coverage: float = 0.95
    """Smallest share of images whose true class is among those that are left open."""
    unit: bool = True
    """Whether features are compared by direction and the logarithm of their length: D - 1 features and one
    number. In models saved by earlier versions, D features are compared unchanged."""
    of_nearest: bool = True
    """Whether the limit of the class with the lowest score decides. In models saved by earlier versions,
    an image is known if it is within the limit of any class."""
    typical: float = math.inf
    """Logits are clamped to this value, because a high logit does not prove that an image is known."""

    def strangeness(self, features: Tensor, logits: Tensor) -> Tensor:
        """Out-of-distribution scores of images for each class: (B, F), (B, K) -> (B, K); or for all classes
        together, (B, 1), in models saved by earlier versions.

        Computed in float32, or in float64 if the features are: if they hardly vary, float32 cannot
        distinguish their directions."""
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
        """By how much the score of the nearest class exceeds its limit: (B, F), (B, K) -> (B,). An image is
        unknown if this is positive."""
        strangeness = self.strangeness(features, logits)
        if not self.of_nearest:
            return (strangeness - self.limit).amin(1)
        return strangeness.amin(1) - self.limit[strangeness.argmin(1)]

    def is_unknown(self, features: Tensor, logits: Tensor) -> Tensor:
        """Whether images are unknown: (B, F), (B, K) -> bool (B,)."""
        return self.excess(features, logits) > 0

    def is_open(self, probabilities: Tensor) -> Tensor:
        """The classes that an answer leaves open, including the most likely one: (B, K) -> bool (B, K)."""
        highest = probabilities.amax(1, keepdim=True)
        return (probabilities >= self.least) | (probabilities == highest)

    def tensors(self) -> dict[str, Tensor]:
        """All fields as tensors, for the file of a model directory; `read_unknown` reads them."""
        tensors = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, Tensor):
                value = torch.tensor(value, dtype=torch.float64)
            tensors[field.name] = value
        return tensors


def direction_and_length(features: Tensor) -> Tensor:
    """Scale features to length 1, and append the logarithm of their length: (B, D - 1) -> (B, D).

    An image without content, such as one of a single colour, has short features, which are close to every
    mean, unlike their direction.
    """
    length = features.square().sum(1, keepdim=True).sqrt().clamp(min=SHORTEST)
    return torch.cat([features / length, length.log()], 1)


def _distances(rows: Tensor, means: Tensor) -> Tensor:
    """Distances of rows to means, (B, R) and (K, R) -> (B, K), with operations that every format of
    exported files has. Rows are centred, so rounding errors are small."""
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
            f"{UNKNOWN} is for {shapes['means']} means, but the model has {classes} classes"
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
                f"{UNKNOWN} has limits of shape {shapes[name]}, but the model has {classes} classes"
            )
        values[name] = values[name].double()
        if values[name].isnan().any():
            raise BadWeights(f"{UNKNOWN} holds NaN")
    for name in NUMBERS:
        values[name] = values[name].item()
        if math.isnan(values[name]):
            raise BadWeights(f"{name!r} in {UNKNOWN} is NaN; it must be a number")
    for name in SWITCHES:
        value = values[name].item()
        if value not in (0, 1):
            raise BadWeights(f"{name!r} in {UNKNOWN} is {value}; it must be 0 or 1")
        values[name] = bool(value)
    if values["of_nearest"] and not values["limit"].ndim:
        raise BadWeights(f"{UNKNOWN} has a single limit, but `of_nearest` needs one for each class")
    first = values["first"]
    if not (math.isfinite(first) and first >= 0 and first % 1 == 0):
        raise BadWeights(f"'first' in {UNKNOWN} is {first}; it must be the index of a feature")
    values["first"] = int(first)
    return Unknown(**values)
