"""The memory and the operations of a training step, counted without running it.

A recipe's learner runs a forward pass on fake tensors (PyTorch's FakeTensorMode), which have a shape and a
device, and take no memory. Autograd's hooks report the tensors that are saved for the backward pass. So any
model, objective and partial training can be planned on any machine in about a second.

Legend: B images, H heads, Q queries, T tokens, E and V numbers of a key and of a value.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from vitkit.models import build
from vitkit.objectives import Segmentation
from vitkit.objectives.objective import blocks_of
from vitkit.recipes import Recipe
from vitkit.system.errors import Unsupported
from vitkit.system.machine import PrecisionChoice
from vitkit.training.optim import apply_tuning, set_residual

GPU = "cuda"  # device of the fake tensors; no GPU is needed
# Number of images of the forward pass. Bytes are divided by it and rounded down, so tensors whose size does
# not depend on the number of images count as 0
IMAGES = 2**30


class Count(NamedTuple):
    """The size of a learner, and the memory that each image of a micro-batch takes until its backward pass."""

    parameters: int
    """Number of parameters, including a teacher's."""
    trained: int
    """Number of parameters that the optimiser changes."""
    block: int
    """Number of parameters of the largest block: FSDP gathers one block after the other."""
    rest: int
    """Number of parameters outside of blocks."""
    image: int
    """Bytes that are saved for an image."""
    image_recomputed: int
    """Bytes that are saved for an image if blocks are recomputed: the blocks' inputs, and all tensors of the
    largest block."""
    widest: int
    """Bytes of the largest tensor that is saved for an image."""


def count(recipe: Recipe) -> Count:
    """Count the parameters and memory of a resolved recipe's learner. Raises VitkitError for an objective
    whose forward pass depends on the values of tensors."""
    learner = learner_of_shapes(recipe)

    # The parameters
    parameters = _numbers(learner.parameters())
    trained = _numbers(p for p in learner.parameters() if p.requires_grad)
    blocks = [_numbers(block.parameters()) for block in blocks_of(learner)]

    # The tensors that a forward pass saves, in blocks and outside of them
    saved = _record_forward(learner, recipe)
    all_saved = saved.outside.copy()
    recomputed = saved.outside.copy()
    largest = 0
    for read_by_block, saved_by_block in saved.calls:
        if saved_by_block:
            all_saved |= saved_by_block
            recomputed |= read_by_block
            largest = max(largest, saved.bytes(saved_by_block))
    return Count(
        parameters=parameters,
        trained=trained,
        block=max(blocks, default=0),
        rest=parameters - sum(blocks),
        image=saved.bytes(all_saved),
        image_recomputed=saved.bytes(recomputed) + largest,
        widest=max(saved.sizes[number] for number in all_saved),
    )


def _numbers(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def relative_flops(recipe: Recipe) -> float:
    """The operations of a step of a resolved recipe, as a multiple of those of plain supervised training.

    It is below 1 if a part of the model is trained, or the encoder sees a part of each image (MAE), and
    well above 1 with several views and a teacher (DINO). Raises VitkitError as `count` does.
    """
    # Plain supervised training
    with torch.device("meta"):
        model = build(recipe.model)
    image = recipe.training_preprocessing.size
    pixels = torch.empty(IMAGES, recipe.model.channels, *image, device="meta")
    with _FusedAttention(), FlopCounterMode(display=False) as plain:
        model.train()(pixels).float().sum().backward()

    # The recipe's training, on a fake CPU: PyTorch cannot run a backward pass on a missing GPU
    learner = learner_of_shapes(recipe)
    with _fake_tensors(), FlopCounterMode(display=False) as counter:
        _loss(learner, _tensors(learner, "cpu"), recipe).backward()
    return counter.get_total_flops() / plain.get_total_flops()


def learner_of_shapes(recipe: Recipe) -> nn.Module:
    """The learner of a resolved recipe on the meta device: parameters with a shape and no
    values."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = build(recipe.model)
        apply_tuning(model, recipe.tune)
        learner = recipe.objective.learner(model, recipe.data.preprocessing)
    return learner.to("meta").train()


class _Saved:
    """The storages that a forward pass saves for its backward pass, each counted once, however many tensors
    are views of it."""

    def __init__(self, parameters: Iterable[Tensor]):
        self.parameters = {_storage(parameter) for parameter in parameters}
        """The storages of parameters, which are not counted."""
        self.numbers: dict[int, int] = {}
        """The number of each storage, in the order in which they were registered."""
        self.sizes: list[int] = []
        """Bytes per image of each storage, by its number."""
        self.alive: list[Tensor] = []
        """A tensor of each storage, which keeps the storage's address from being reused."""
        self.outside: set[int] = set()
        """Numbers of the storages that are saved outside of blocks."""
        self.calls: list[tuple[set[int], set[int]]] = []
        """For each call of a block, the storages that it reads, and those that it saves."""
        self.in_block = False

    def save(self, tensor: Tensor) -> None:
        """Hook for autograd, which calls it with every tensor that is saved."""
        if _storage(tensor) in self.parameters:
            return
        saved = self.outside
        if self.in_block:
            _, saved = self.calls[-1]
        saved.add(self.number(tensor))

    def enter(self, block: nn.Module, inputs: tuple) -> None:
        """Forward pre-hook of a block: tensors that are saved from now on belong to its call."""
        read = {self.number(value) for value in inputs if isinstance(value, Tensor)}
        self.calls.append((read, set()))
        self.in_block = True

    def leave(self, block: nn.Module, inputs: tuple, output: Tensor) -> None:
        """Forward hook of a block: its call ends."""
        self.in_block = False

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, which is registered if it is new."""
        storage = _storage(tensor)
        if storage not in self.numbers:
            self.numbers[storage] = len(self.sizes)
            self.sizes.append(tensor.untyped_storage().nbytes() // IMAGES)
            self.alive.append(tensor.detach())
        return self.numbers[storage]

    def bytes(self, numbers: set[int]) -> int:
        """The bytes per image of these storages."""
        return sum(self.sizes[number] for number in numbers)


def _storage(tensor: Tensor) -> int:
    """The identity of a tensor's storage, because the data pointer of a fake tensor is 0."""
    return tensor.untyped_storage()._cdata


def _record_forward(learner: nn.Module, recipe: Recipe) -> _Saved:
    """Run a forward pass on fake tensors, and record what it saves for the backward pass."""
    set_residual(learner, recipe)
    with _fake_tensors(), _autocast(recipe.precision):
        parameters = _tensors(learner, GPU)
        saved = _Saved(parameters.values())

        # Hooks on the blocks that can be recomputed
        hooks = []
        for encoder in learner.modules():
            if hasattr(encoder, "recompute"):
                for block in getattr(encoder, "blocks", ()):
                    hooks.append(block.register_forward_pre_hook(saved.enter))
                    hooks.append(block.register_forward_hook(saved.leave))

        # Hooks on what autograd saves; the second one is for the backward pass, and is never called
        try:
            with torch.autograd.graph.saved_tensors_hooks(saved.save, lambda nothing: nothing):
                _loss(learner, parameters, recipe)
        finally:
            for hook in hooks:
                hook.remove()
    return saved


def _tensors(learner: nn.Module, device: str) -> dict[str, Tensor]:
    """A learner's parameters and buffers by name, as fake tensors on a device."""
    tensors = {}
    for name, tensor in (*learner.named_parameters(), *learner.named_buffers()):
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        tensors[name] = empty.requires_grad_(tensor.requires_grad)
    return tensors


def _loss(learner: nn.Module, parameters: dict[str, Tensor], recipe: Recipe) -> Tensor:
    """The loss of a forward pass with these parameters. Raises VitkitError for an objective whose forward
    pass depends on the values of tensors."""
    device = next(iter(parameters.values())).device
    image = recipe.training_preprocessing.size
    pixels = torch.empty(IMAGES, recipe.model.channels, *image, device=device)
    targets = torch.zeros(IMAGES, dtype=torch.int64, device=device)
    if isinstance(recipe.objective, Segmentation):
        targets = torch.zeros(IMAGES, *image, dtype=torch.uint8, device=device)
    keys = torch.zeros(IMAGES, dtype=torch.int64, device=device)
    try:
        return functional_call(learner, parameters, (pixels, targets, keys))
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise Unsupported(
            f"the needs of {type(recipe.objective).__name__} cannot be counted without running it "
            f"({str(error).splitlines()[0]}); start a run, and measure its memory and speed"
        ) from error


@contextmanager
def _fake_tensors() -> Iterator[None]:
    """Context in which new tensors have shapes and no values, on any device."""
    with FakeTensorMode(allow_non_fake_inputs=True), _FusedAttention():
        yield


@contextmanager
def _autocast(precision: PrecisionChoice) -> Iterator[None]:
    """Context in which autocast is on for a GPU. Unlike torch.autocast, it stays on without a GPU."""
    enabled = torch.is_autocast_enabled(GPU)
    dtype = torch.get_autocast_dtype(GPU)
    torch.set_autocast_enabled(GPU, precision == "bfloat16")
    torch.set_autocast_dtype(GPU, torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled(GPU, enabled)
        torch.set_autocast_dtype(GPU, dtype)
        torch.clear_autocast_cache()


class _FusedAttention(TorchFunctionMode):
    """Context in which scaled dot-product attention saves the tensors of the GPU's fused kernels. With fake
    tensors, PyTorch would use the implementation that saves T x T weights."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v, *others = args
        bias = others[0] if others else (kwargs or {}).get("attn_mask")
        if q.device.type == GPU and torch.is_autocast_enabled(GPU):
            dtype = torch.get_autocast_dtype(GPU)
            q, k, v = (x.to(dtype) for x in (q, k, v))
        return _Fused.apply(q, k, v, bias)


class _Fused(torch.autograd.Function):
    """The shapes, operations and saved tensors of the fused kernel."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """(B, H, Q, E), (B, H, T, E), (B, H, T, V) -> (B, H, Q, V)."""
        torch.matmul(q @ k.mT, v)  # computed only so that its operations are counted

        # The output has the memory layout of the queries
        out = torch.empty_like(q.transpose(1, 2))  # (B, Q, H, E)
        if v.shape[-1] != q.shape[-1]:
            out = q.new_empty(*out.shape[:-1], v.shape[-1])  # (B, Q, H, V)
        out = out.transpose(1, 2)

        # The kernel saves its inputs, its output, and the sums of the softmax
        sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, bias, out, sums)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Two matrix products for each of the two in `forward`, and one that recomputes the weights."""
        q, k, v, bias, _, _ = ctx.saved_tensors
        weights = q @ k.mT
        d_weights = gradient @ v.mT
        d_bias = None if bias is None else torch.empty_like(bias)
        return d_weights @ k, d_weights.mT @ q, weights.mT @ gradient, d_bias
