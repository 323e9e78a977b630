"""A Preprocessing as part of a network: resize and centre crop as two products with matrices.

Each row of a matrix holds the shares that the pixels of an axis have in one pixel of the result: of
all pixels below the kernel, as Pillow resizes, or of the nearest two or four, without antialiasing.
The sizes of a picture are known when it comes, so the matrices are computed then, by operators that
every runtime has; no runtime's own resize is Pillow's to the level.

Legend: B batch, H W pixels of the picture, h w pixels of what the model gets.
"""

import torch
from torch import Tensor, nn

from vitkit.data import Preprocessing

RADIUS = {"bilinear": 1, "bicubic": 2}  # pixels, on each side, that a kernel reaches
# Keys' parameter of the cubic kernel: Pillow's, and PyTorch's without antialiasing
SHARP = {True: -0.5, False: -0.75}


class PictureResize(nn.Module):
    """Pictures of any size to what the model gets."""

    def __init__(self, preprocessing: Preprocessing):
        super().__init__()
        self.preprocessing = preprocessing

    def forward(self, pictures: Tensor) -> Tensor:
        """uint8 (B, H, W, 3) -> whole float32 levels, (B, 3, h, w)."""
        old_height = torch.full((1,), pictures.shape[1], dtype=torch.int64)
        old_width = torch.full((1,), pictures.shape[2], dtype=torch.int64)
        new_height, new_width = self.resized(old_height, old_width)
        rows = torch.arange(pictures.shape[1]).float()
        columns = torch.arange(pictures.shape[2]).float()
        height, width = self.preprocessing.size
        down = self.shares(rows, old_height, new_height, height)  # (h, H)
        across = self.shares(columns, old_width, new_width, width)  # (w, W)
        x = pictures.permute(0, 3, 1, 2).float()  # (B, 3, H, W)
        x = levels(x @ across.mT)  # (B, 3, H, w)  Pillow resizes rows first, to whole levels
        return levels(down @ x)  # (B, 3, h, w)

    def resized(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """(H, W) before the centre crop, as Preprocessing has it: int64 (1,) each."""
        preprocessing = self.preprocessing
        side = preprocessing.resize or max(preprocessing.size)
        if preprocessing.rule == "shorter":
            shorter = torch.minimum(height, width)
            return side * height // shorter, side * width // shorter
        both = (preprocessing.resize, preprocessing.resize)
        if not preprocessing.resize:
            both = preprocessing.size
        return torch.full_like(height, both[0]), torch.full_like(width, both[1])

    def shares(self, pixels: Tensor, old: Tensor, new: Tensor, count: int) -> Tensor:
        """The matrix of one axis, (count, old): the middle `count` of `new` pixels from `old` ones.

        pixels: 0, 1, ..., old - 1.
        """
        first = torch.round((new - count).float() / 2)  # (1,)  the crop begins here
        scale = old.float() / new.float()  # (1,)  old pixels for one new one
        centres = (first + torch.arange(count) + 0.5) * scale  # (count,)
        if self.preprocessing.antialias:
            stretch = torch.clamp(scale, min=1.0)  # the kernel covers all pixels that become one
            distance = (pixels + 0.5 - centres[:, None]) / stretch  # (count, old)
            weights = self.kernel(distance)
            return weights / weights.sum(1, keepdim=True)
        return self.shares_of_nearest(pixels, old, centres)

    def shares_of_nearest(self, pixels: Tensor, old: Tensor, centres: Tensor) -> Tensor:
        """As `shares`, of the nearest two or four pixels; beyond the border its pixel counts."""
        radius = RADIUS[self.preprocessing.interpolation]
        below = torch.floor(centres - 0.5)  # (count,)
        weights = torch.zeros_like(centres)[:, None] * pixels  # (count, old)
        for step in range(1 - radius, radius + 1):
            neighbour = below + step
            share = self.kernel(neighbour + 0.5 - centres)[:, None]  # (count, 1)
            at = torch.minimum(neighbour.clamp(min=0.0), (old - 1).float())[:, None]
            weights = weights + share * (pixels == at).float()
        return weights

    def kernel(self, distance: Tensor) -> Tensor:
        """The share of a pixel at a distance from the centre, in pixels; any shape."""
        x = distance.abs()
        if self.preprocessing.interpolation == "bilinear":
            return torch.clamp(1 - x, min=0.0)
        a = SHARP[self.preprocessing.antialias]
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def levels(x: Tensor) -> Tensor:
    """Whole levels from 0 to 255, halves upwards."""
    return torch.floor(x + 0.5).clamp(0.0, 255.0)
