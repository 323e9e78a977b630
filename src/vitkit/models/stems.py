"""The stem: images to a grid of patch embeddings (Eq. 1).

A hybrid has another stem, ResNetStem in resnet.py (Section 3.1).

Legend: B batch, C channels, P patch size, D width, (h, w) the grid of patches.
"""

from torch import Tensor, nn

from vitkit.models.init import lecun_normal_
from vitkit.models.tiling import Tiling


class Patches(nn.Module):
    """x_p E of Eq. 1: cut the image into P x P patches and project each.

    A convolution does both. In the paper its stride is its kernel.
    """

    def __init__(self, channels: int, width: int, patches: Tiling, bias: bool = True):
        super().__init__()
        self.patches = patches
        self.project = nn.Conv2d(channels, width, patches.size, patches.stride, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, h, w); without overlap H is h·P. Raises ValueError for sides that
        whole patches do not cover."""
        check_fits(images, self.patches)
        return self.project(images)

    def init_weights(self) -> None:
        """Flax's default for a dense layer of the P·P·C numbers of a patch."""
        lecun_normal_(self.project.weight)
        if self.project.bias is not None:
            nn.init.zeros_(self.project.bias)


def check_images(images: Tensor, channels: int) -> None:
    """Raise ValueError for anything but a batch of normalised images of so many channels."""
    if images.ndim != 4 or images.shape[1] != channels or not images.is_floating_point():
        raise ValueError(
            f"images must be floating point, normalised, of shape (batch, {channels}, height, "
            f"width); these are {images.dtype} of shape {tuple(images.shape)}"
        )


def check_fits(images: Tensor, tiling: Tiling) -> None:
    """Raise ValueError for images that whole patches, in pixels, do not cover."""
    image = tuple(images.shape[-2:])
    if not tiling.fits(image):
        raise ValueError(
            f"{tiling.misfit(image)}; resize it to {tiling.sizes(image)} (its Preprocessing does)"
        )
