"""The convolutions of a ResNet: standardised kernels, and TensorFlow's padding.

Legend: B batch, C channels in, C' channels out, (h, w) sides of a feature map, k side of a kernel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.init import lecun_normal_
from vitkit.models.resnets.backbone import Backbone


class Conv(nn.Module):
    """A convolution without bias whose kernel is standardised in every pass (weight
    standardisation, as BiT has it)."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, config: Backbone):
        super().__init__()
        self.stride = stride
        self.same = config.padding == "same"
        self.how = config.standardise
        self.eps = config.weight_eps
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size, size))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C', h', w')."""
        size = self.weight.shape[-1]
        kernel = self.weight  # (C', C, k, k)
        if self.how != "none":
            kernel = standardised(kernel, self.how, self.eps)
        if self.same and self.stride > 1:
            x = pad_same(x, size, self.stride, 0.0)
            return F.conv2d(x, kernel, stride=self.stride)
        # With a stride of 1, SAME is the same on both sides too.
        return F.conv2d(x, kernel, stride=self.stride, padding=size // 2)

    def standardise_once(self) -> None:
        """For inference: standardise the kernel now, not in every pass. It becomes the weight."""
        if self.how != "none":
            kernel = standardised(self.weight.detach(), self.how, self.eps)
            self.weight = nn.Parameter(kernel, requires_grad=False)
            self.how = "none"

    def init_weights(self) -> None:
        """Flax's default, or He et al.'s for a plain kernel, which goes with BatchNorm."""
        if self.how == "none":
            nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        else:
            lecun_normal_(self.weight)


def standardised(weight: Tensor, how: str, eps: float) -> Tensor:
    """Every output channel's kernel with mean 0 and spread 1, computed in float32 at least.

    (C', C, k, k) as it came. how: "std" divides by std + eps, "variance" by sqrt(variance + eps).
    """
    exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
    exact = exact - exact.mean((1, 2, 3), keepdim=True)
    # The variance of the population (not of a sample), in every origin.
    variance = exact.square().mean((1, 2, 3), keepdim=True)  # (C', 1, 1, 1)
    if how == "std":
        spread = variance.sqrt() + eps
    else:
        spread = (variance + eps).sqrt()
    return (exact / spread).to(weight.dtype)


def pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """A feature map (..., h, w) with TensorFlow's SAME padding around it."""
    top, bottom = same_padding(x.shape[-2], kernel, stride)
    left, right = same_padding(x.shape[-1], kernel, stride)
    if bottom == 0 and right == 0:  # then top and left are 0 too
        return x
    return F.pad(x, (left, right, top, bottom), value=value)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME padding along one side, (before, after): as much as makes the output
    ceil(size / stride) long."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    before = total // 2
    return before, total - before
