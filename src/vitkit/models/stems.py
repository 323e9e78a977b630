"""The stem: images to a grid of patch embeddings (Eq. 1).

A hybrid has another stem, ResNetStem in resnet.py (Section 3.1).

Legend: B batch, C channels, P patch size, D width, (h, w) the grid of patches.
"""

from torch import Tensor, nn

from vitkit.models.init import lecun_normal_


class Patches(nn.Module):
    """x_p E of Eq. 1: cut the image into P x P patches and project each.

    A convolution whose stride is its kernel does both.
    """

    def __init__(self, channels: int, patch: int, width: int, bias: bool = True):
        super().__init__()
        self.patch = patch
        self.project = nn.Conv2d(channels, width, patch, stride=patch, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, h·P, w·P) -> (B, D, h, w). Raises ValueError for sides that P does not divide."""
        check_divisible(images, self.patch)
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


def check_divisible(images: Tensor, side: int) -> None:
    """Raise ValueError for images that cannot be cut into squares of `side` pixels."""
    height, width = images.shape[-2:]
    if height % side or width % side:
        raise ValueError(
            f"an image of {height} x {width} pixels cannot be cut into patches of {side} x {side}; "
            f"resize it to multiples of {side} (its Preprocessing does)"
        )
