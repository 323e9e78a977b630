"""Mixup and CutMix: an image and its target are combined with those of a partner, in equal shares.

They run on the device, batch by batch.

Example 2i of a batch is mixed with example 2i + 1, which the shuffle made its neighbour; each
example has a share of its own. So every part of a batch with an even number of examples can be
mixed alone, and the result does not depend on micro-batches or ranks. The random numbers of an
example depend only on its key.

Legend: B batch, C channels, K classes.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vitkit.system.errors import BadSettings

# SplitMix64's constants, as int64
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_INTERVALS = 4096  # of a quantile function, interpolated linearly in each


def mix(
    images: Tensor, targets: Tensor, keys: Tensor, mixup: float = 0.0, cutmix: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mix images (B, C, H, W) and their targets (B, K).

    Mixup (Zhang et al., 2018) blends whole images. CutMix (Yun et al., 2019) puts a box of the partner
    into the image; the image's border clips the box, and the target follows the remaining area. If both
    are on, each example uses either with equal probability.

    keys: int64 (B,). The random numbers of an example are a function of its key.
    mixup, cutmix: alpha of the distribution Beta(alpha, alpha) of an example's own share; 0 is off.
    Raises VitkitError for an odd B.
    """
    if len(images) % 2:
        raise BadSettings(
            f"mixup and cutmix mix neighbours in pairs, and {len(images)} images have no pairs; "
            f"make the batch, the micro-batch and every process's share of the batch even "
            f"(`batch`, `micro_batch`)"
        )
    if not mixup and not cutmix:
        return images, targets
    draws = uniforms(keys, 4)  # mixup or cutmix, the share, and the box's centre

    # Share of itself that each pixel keeps, (B, 1, 1, 1) or (B, 1, H, W), and the target's share
    if mixup:
        blend = _beta(draws[:, 1], mixup).view(-1, 1, 1, 1)
        keep = blend
        share = blend
    if cutmix:
        outside_box = _outside_box(draws, cutmix, images.shape[2:])
        outside_share = outside_box.mean((1, 2, 3), keepdim=True)
        keep = outside_box
        share = outside_share
    if mixup and cutmix:
        blended = draws[:, 0].view(-1, 1, 1, 1) < 0.5
        keep = torch.where(blended, blend, outside_box)
        share = torch.where(blended, blend, outside_share)

    # The rest is the partner's
    keep = keep.to(images)
    share = share.view(-1, 1).to(targets)
    mixed_images = keep * images + (1 - keep) * _partners(images)
    mixed_targets = share * targets + (1 - share) * _partners(targets)
    return mixed_images, mixed_targets


def uniforms(keys: Tensor, count: int, purpose: int = 0) -> Tensor:
    """Keys int64 (B,) -> float32 (B, count), uniform between 0 and 1.

    They are a function of the key and the purpose alone, and equal on every device. Each purpose has its
    own numbers. The generator is SplitMix64, started at the key; its upper 24 bits are used.
    """
    start = (purpose * _FIRST + (1 << 63)) % (1 << 64) - (1 << 63)  # wrapped as int64 overflows
    numbers = torch.arange(1, count + 1, device=keys.device)
    bits = keys[:, None] + start + numbers * _GOLDEN  # the overflow is part of the generator
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    bits = bits ^ _shifted(bits, 31)
    return (_shifted(bits, 40).to(torch.float32) + 0.5) / (1 << 24)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Bits shifted to the right, with zeros on the left, where int64 would repeat its sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _partners(values: Tensor) -> Tensor:
    """Every row's neighbour: 1, 0, 3, 2, 5, 4 ..."""
    return values.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def _outside_box(draws: Tensor, alpha: float, size: torch.Size) -> Tensor:
    """A mask of the pixels outside a box: float (B, 1, H, W), 1 outside and 0 inside.

    The box has the aspect ratio of the image. Its area is drawn before the border clips it.
    """
    area = 1 - _beta(draws[:, 1], alpha)  # as a share of the image's
    half_side = area.sqrt() / 2
    in_rows = _near(draws[:, 2], half_side, size[0])  # (B, H)
    in_columns = _near(draws[:, 3], half_side, size[1])  # (B, W)
    in_box = in_rows[:, :, None] & in_columns[:, None, :]
    return 1 - in_box.float().unsqueeze(1)


def _near(centre: Tensor, distance: Tensor, length: int) -> Tensor:
    """(B,) centres and distances, as shares of an axis -> bool (B, length): which pixels of the axis lie
    at most a distance away from the centre."""
    centre = (centre * length).floor()[:, None]
    distance = (distance * length).floor()[:, None]
    pixel = torch.arange(length, device=centre.device)
    return (pixel >= centre - distance) & (pixel < centre + distance)


def _beta(uniform: Tensor, alpha: float) -> Tensor:
    """Map uniform numbers to numbers distributed as Beta(alpha, alpha), by its quantile function."""
    table = torch.from_numpy(_quantiles(alpha)).to(uniform.device, non_blocking=True)
    position = uniform * _INTERVALS
    low = position.long().clamp(max=_INTERVALS - 1)  # the interval that the position lies in
    return torch.lerp(table[low], table[low + 1], position - low)


@lru_cache(maxsize=8)
def _quantiles(alpha: float) -> np.ndarray:
    """The quantile function of Beta(alpha, alpha) at equal steps from 0 to 1: float32
    (_INTERVALS + 1,)."""
    from scipy.special import betaincinv

    return betaincinv(alpha, alpha, np.linspace(0, 1, _INTERVALS + 1)).astype(np.float32)
