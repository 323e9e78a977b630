"""What is done to colours, by torchvision: jitter, its RandAugment, erasing; each drawn from a seed
of its own.

torchvision draws from PyTorch's global generator, which is seeded for it and left as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from vitkit.data.images.files import Box

ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")  # as torchvision numbers them


class Colours(NamedTuple):
    """A colour jitter as it was drawn."""

    order: tuple[int, ...]
    """Which of ADJUSTMENTS comes first, second and so on, by number."""
    amounts: tuple[float | None, ...]
    """Factors of the first three, part of the colour circle for the hue; None leaves one out."""

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        for i in self.order:
            adjust = getattr(functional, f"adjust_{ADJUSTMENTS[i]}")
            if self.amounts[i] is not None:
                image = adjust(image, self.amounts[i])
        return image


def draw_colours(strengths: tuple[float, float, float, float], seed: int) -> Colours:
    """A jitter of at most these strengths, by ADJUSTMENTS."""
    with _seeded(seed):
        drawn = v2.ColorJitter(*strengths).make_params([])
    order = drawn["fn_idx"].tolist()
    amounts = [drawn[f"{name}_factor"] for name in ADJUSTMENTS]
    return Colours(tuple(order), tuple(amounts))


class Policy(NamedTuple):
    """torchvision's RandAugment, which draws while it is applied: what was drawn is its seed."""

    layers: int
    magnitude: int
    seed: int

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 (3, h, w) -> uint8 (3, h, w)."""
        with _seeded(self.seed):
            return v2.RandAugment(self.layers, self.magnitude)(image)


def draw_erased(share: float, size: tuple[int, int], seed: int) -> Box | None:
    """A rectangle of 2 to 33 % of an image of `size` (h, w), for a share of the images; None for
    the others."""
    with _seeded(seed):
        if torch.rand(1) >= share:
            return None
        image = torch.empty(3, *size, device="meta")
        drawn = v2.RandomErasing(1.0, value=[0, 0, 0]).make_params([image])
    if drawn["v"] is None:  # no rectangle fitted
        return None
    return drawn["i"], drawn["j"], drawn["h"], drawn["w"]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """PyTorch's global generator, of the CPU, begins with this seed inside, and goes on as before
    outside."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
