"""Position tables on another grid than the one they were made for (Section 3.2).

Legend: (h, w) the grid, D width, "prefix" the tokens before the patches.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.models.resnets.backbone import Grid

# How each origin of weights resamples a table; they differ by more than rounding.
RESAMPLE = {
    "google": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom(order=1)
    "timm": {"mode": "bicubic", "antialias": True},
    "huggingface": {"mode": "bicubic"},
    "torchvision": {"mode": "bicubic", "align_corners": True},
}


def resample(table: Tensor, old: Grid, new: Grid, method: str = "google") -> Tensor:
    """A position table on another grid: (1, prefix + h·w, D) -> (1, prefix + h'·w', D).

    Rows before the patches (class token, registers) stay as they are; the patches' rows are
    interpolated in two dimensions, "according to their location in the original image" (Section
    3.2). Raises ValueError for an unknown method, or a table that cannot hold the old grid.
    """
    if method not in RESAMPLE:
        raise ValueError(f"no resampling method {method!r}; there are {', '.join(RESAMPLE)}")
    patches = old[0] * old[1]
    if table.ndim != 3 or table.shape[1] < patches:
        raise ValueError(
            f"a table of shape {tuple(table.shape)} cannot hold a grid of {old[0]} x {old[1]} "
            "patches"
        )
    if old == new:
        return table
    prefix = table.shape[1] - patches
    image = table[:, prefix:].to(exact_dtype(table.device))  # (1, h·w, D)
    image = image.unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, h, w)
    image = F.interpolate(image, size=new, **RESAMPLE[method])  # (1, D, h', w')
    image = image.permute(0, 2, 3, 1).flatten(1, 2)  # (1, h'·w', D)
    return torch.cat([table[:, :prefix], image.to(table.dtype)], 1)


def resample_axis(table: Tensor, length: int, method: str) -> Tensor:
    """A table of one axis on another length: (1, n, D) -> (1, length, D)."""
    return resample(table, (1, table.shape[1]), (1, length), method)


def exact_dtype(device: torch.device) -> torch.dtype:
    """float64 if the device has it; Apple's GPUs do not."""
    if device.type == "mps":
        return torch.float32
    return torch.float64
