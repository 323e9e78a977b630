"""Stems: images to a grid of patch embeddings. A hybrid is only another stem (Section 3.1): ResNetStem, beside its ResNet.

Legend: B batch, C channels, P patch size, D width, (h, w) the grid of patches.
"""

from torch import Tensor, nn

from vitkit.models.init import lecun_normal_


class Patches(nn.Module):
    """x_p E of Eq. 1: cut the image into P x P patches and project each: (B, C, h·P, w·P) -> (B, D, h, w)."""

    def __init__(self, channels: int, patch: int, width: int):
        super().__init__()
        self.patch = patch
        self.project = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if height % self.patch or width % self.patch:
            raise ValueError(
                f"an image of {height} x {width} pixels cannot be cut into patches of {self.patch} x {self.patch}; "
                f"resize it to multiples of {self.patch} (its Preprocessing does)"
            )
        return self.project(images)

    def init_weights(self) -> None:
        lecun_normal_(self.project.weight)
        nn.init.zeros_(self.project.bias)
