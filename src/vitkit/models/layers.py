"""Parts that the models share: the dense layer, the initialisation of layers, and the check and the
type of images.

A dense layer computes x Wᵀ + b by the fastest method on this machine. In float32 on a CPU this is
PyTorch or oneDNN, whichever system/matmul.py measured to be faster. On other devices, in other dtypes
and in exported graphs it is PyTorch's linear layer.

Legend: D inputs, E outputs; any axes before them.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from vitkit.system import matmul
from vitkit.system.errors import BadSettings

# Below this number of multiplications, the start of oneDNN, some 15 microseconds, takes longer than it
# saves
LEAST_WORK = 2**24
# The standard deviation of a standard normal distribution truncated at two standard deviations.
STD_OF_TRUNCATED = 0.87962566103423978


class Dense(nn.Linear):
    """PyTorch's linear layer, except that oneDNN may compute its product."""

    def reset_parameters(self) -> None:
        """PyTorch's initial values. Skipped without memory, where drawing them would take half of the time of
        building a model."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., E)."""
        if onednn_is_faster(x, self.weight):
            return onednn_linear(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def onednn_is_faster(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN supports this product and computes it faster."""
    # oneDNN supports plain float32 tensors on a CPU. Quantisers and tensor parallelism replace weights by
    # tensors of other classes
    if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    if type(weight) not in (Tensor, nn.Parameter) or torch.is_autocast_enabled("cpu"):
        return False
    # Exported graphs contain the plain layer, and PyTorch transforms only its own operators, for example
    # for the gradients of single examples (torch.func)
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    if not torch.compiler.is_compiling() and _is_interpreted():
        return False
    # PyTorch reports widths that do not fit; oneDNN's error does not explain them
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        return False
    if x.numel() * weight.shape[0] < LEAST_WORK:
        return False
    return _measured().forward


def _is_interpreted() -> bool:
    """Whether PyTorch counts, fakes or forward-differentiates operators: these modes support only its
    own."""
    return torch._C._len_torch_dispatch_stack() > 0 or forward_ad._current_level >= 0


def _measured() -> matmul.OneDnn:
    """The products that oneDNN computes in this process. A compiler traces Python and cannot measure
    meanwhile: before any measurement, PyTorch computes all."""
    if matmul.is_known() or not torch.compiler.is_compiling():
        return matmul.in_use()
    return matmul.NONE


# The operator, registered with PyTorch so that it can be compiled and differentiated (also twice).
# Not by torch.library.custom_op: its first call imports the compiler, which takes seconds
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


def _save_for_backward(ctx, inputs: tuple, output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


@partial(torch.library.register_autograd, LINEAR, setup_context=_save_for_backward, lib=OPERATORS)
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
        """(..., D) -> (..., D), computed in the factor's precision: autocast supports only LayerNorm."""
        return super().forward(x.to(self.weight.dtype))


def build_norm(width: int, eps: float, rms: bool) -> nn.LayerNorm | RMSNorm:
    """The norm of a model's states over the last axis, of this width: a LayerNorm or an RMSNorm."""
    if rms:
        return RMSNorm(width, eps)
    return nn.LayerNorm(width, eps)


# Initial weights of layers, as in the official code


def lecun_normal_(weight: Tensor) -> Tensor:
    """Truncated normal of variance 1 / fan_in, flax's default for Dense and Conv.

    weight: (out, in, ...), filled in place and returned.
    """
    fan_in = weight[0].numel()
    std = fan_in**-0.5 / STD_OF_TRUNCATED
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def init_head(head: nn.Module, bias: float) -> None:
    """Initialise every dense layer of a head with zeros and this bias (-10 is used with the sigmoid
    loss)."""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)


def init_children(model: nn.Module) -> None:
    """Initialise every module below `model`: norms as the identity, others by their own
    `init_weights`.

    Norms come first, because a unit may set its norms to zero.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | nn.BatchNorm2d):
            module.reset_parameters()
    for module in model.modules():
        if module is not model and hasattr(module, "init_weights"):
            module.init_weights()  # type: ignore[operator]  # always a method


# Images


def check_images(images: Tensor, channels: int) -> None:
    """Raise VitkitError for anything but a batch of normalised images with this many channels."""
    if images.ndim != 4 or images.shape[1] != channels or not images.is_floating_point():
        raise BadSettings(
            f"images must be floating point, normalised, of shape (batch, {channels}, height, "
            f"width); these are {images.dtype} of shape {tuple(images.shape)}"
        )


def in_type_of_weights(images: Tensor, layer: nn.Module) -> Tensor:
    """Images in the floating type of the weights of the model's first layer, so that a model computes in the
    type that it was converted to.

    Under autocast, which chooses the type of each operation, images are unchanged unless they are float64,
    which autocast ignores. Raises VitkitError for weights that autocast cannot combine with its own type,
    such as float16 with bfloat16.
    """
    first = next(layer.parameters(), None)
    if first is None:  # a replica of nn.DataParallel, or a quantised layer
        return images
    weights = first.dtype
    if images.dtype == weights == torch.float32:  # nearly always
        return images
    device = images.device.type
    has_autocast = torch.amp.is_autocast_available(device)  # "meta" has none
    if not has_autocast or not torch.is_autocast_enabled(device):
        return images.to(weights)
    chosen = torch.get_autocast_dtype(device)
    if weights not in (torch.float32, chosen):
        raise BadSettings(
            f"the model's weights are {_name_of(weights)}, which do not go together with computing in "
            f"{_name_of(chosen)}; convert them by model.float(), or compute with precision='float32'"
        )
    if images.dtype == torch.float64:  # if that is PyTorch's default type
        return images.to(weights)
    return images


def _name_of(dtype: torch.dtype) -> str:
    """The name of a type in messages: "float16"."""
    return str(dtype).removeprefix("torch.")
