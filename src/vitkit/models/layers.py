"""What the models share: the dense layer, the first weights of layers, and the check of images.

A dense layer is x Wᵀ + b, by the fastest way that this machine has. In float32 on a CPU that is
PyTorch's own way or oneDNN's, as system/matmul.py has measured. On every other device, in every other
arithmetic and in exported graphs it is PyTorch's linear layer.

Legend: D inputs, E outputs; any axes before them.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from vitkit.system import matmul
from vitkit.system.errors import BadSettings

# Below this number of multiplications, the time that oneDNN takes to begin, some 15 microseconds, is more
# than it saves
LEAST_WORK = 2**24
# The standard deviation that is left of a unit normal cut off at two standard deviations.
STD_OF_TRUNCATED = 0.87962566103423978


class Dense(nn.Linear):
    """PyTorch's linear layer in all respects but the library that computes its product."""

    def reset_parameters(self) -> None:
        """PyTorch's first numbers. None without memory for them, where drawing them would take half of
        the time in which a model is built."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., E)."""
        if onednn_is_faster(x, self.weight):
            return onednn_linear(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def onednn_is_faster(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN computes the product here."""
    # What it computes: plain float32 tensors on a CPU. Quantisers and tensor parallelism give a
    # layer weights of another class
    if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    if type(weight) not in (Tensor, nn.Parameter) or torch.is_autocast_enabled("cpu"):
        return False
    # Graphs that leave hold the plain layer; and PyTorch transforms none but its own operators, as
    # for the gradients of single examples (torch.func)
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    if not torch.compiler.is_compiling() and _is_interpreted():
        return False
    # PyTorch complains of widths that do not fit: oneDNN does not say what is wrong
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        return False
    if x.numel() * weight.shape[0] < LEAST_WORK:
        return False
    return _measured().forward


def _is_interpreted() -> bool:
    """Whether PyTorch counts, fakes or differentiates operators forward: such modes know only its
    own."""
    return torch._C._len_torch_dispatch_stack() > 0 or forward_ad._current_level >= 0


def _measured() -> matmul.OneDnn:
    """Which products oneDNN computes in this process. A compiler traces Python and cannot measure
    within it: where nothing has been measured yet, PyTorch computes all."""
    if matmul.is_known() or not torch.compiler.is_compiling():
        return matmul.in_use()
    return matmul.NONE


# The operator, registered with PyTorch so that it may be compiled and differentiated (twice too).
# Not by torch.library.custom_op, which imports the compiler, some seconds, when it is first called
OPERATORS = torch.library.Library("vitkit", "DEF")
LINEAR = f"vitkit::{OPERATORS.define('linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor')}"


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b by oneDNN: float32 (..., D), (E, D), (E) or None -> (..., E)."""
    return torch.ops.vitkit.linear.default(x, weight, bias)


@torch.library.impl(LINEAR, "CPU", lib=OPERATORS)
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return matmul.onednn(x, weight, bias)


@torch.library.register_fake(LINEAR, lib=OPERATORS)
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _keep(ctx, inputs: tuple, output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


@partial(torch.library.register_autograd, LINEAR, setup_context=_keep, lib=OPERATORS)
def _(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, W and b, from that of the outputs, g: g W, gᵀ x, and the sum of g."""
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = None, None, None
    by_onednn = matmul.in_use()
    rows = gradient.reshape(-1, gradient.shape[-1])  # (rows, E)
    if ctx.needs_input_grad[0]:
        if by_onednn.input_gradient:
            of_x = onednn_linear(gradient, weight.T, None)
        else:
            of_x = gradient @ weight
    if ctx.needs_input_grad[1]:
        inputs = x.reshape(-1, x.shape[-1])  # (rows, D)
        if by_onednn.weight_gradient:
            of_weight = onednn_linear(rows.T, inputs.T, None)
        else:
            of_weight = rows.T @ inputs
    if ctx.has_bias and ctx.needs_input_grad[2]:
        of_bias = rows.sum(0)
    return of_x, of_weight, of_bias


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x²) + eps), times a learned factor, over the last axis (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D), computed in the factor's precision: autocast knows LayerNorm alone."""
        return super().forward(x.to(self.weight.dtype))


def build_norm(width: int, eps: float, rms: bool) -> nn.LayerNorm | RMSNorm:
    """The norm of a model's states: a LayerNorm, or an RMSNorm, over the last axis, of this width."""
    if rms:
        return RMSNorm(width, eps)
    return nn.LayerNorm(width, eps)


# The first weights of layers, as the official code has them


def lecun_normal_(weight: Tensor) -> Tensor:
    """Truncated normal of variance 1 / fan_in, flax's default for Dense and Conv.

    weight: (out, in, ...), filled in place and returned.
    """
    fan_in = weight[0].numel()
    std = fan_in**-0.5 / STD_OF_TRUNCATED
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def init_head(head: nn.Module, bias: float) -> None:
    """Zero weights for every dense layer of a head, and this bias (-10 goes with the sigmoid
    loss)."""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)


def init_children(model: nn.Module) -> None:
    """Initialise every module below `model`: norms as the identity, others by their own
    `init_weights`.

    A unit may set its norms to zero, so that norms come first.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | nn.BatchNorm2d):
            module.reset_parameters()
    for module in model.modules():
        if module is not model and hasattr(module, "init_weights"):
            module.init_weights()  # type: ignore[operator]  # a method, wherever there is one


# Images


def check_images(images: Tensor, channels: int) -> None:
    """Raise VitkitError for anything but a batch of normalised images with this many channels."""
    if images.ndim != 4 or images.shape[1] != channels or not images.is_floating_point():
        raise BadSettings(
            f"images must be floating point, normalised, of shape (batch, {channels}, height, "
            f"width); these are {images.dtype} of shape {tuple(images.shape)}"
        )
