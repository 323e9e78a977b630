"""What a training step needs, counted without running it.

A recipe's learner goes through a forward pass on fake tensors (PyTorch's FakeTensorMode), which
have a shape, claim to be on a GPU and take no memory. Autograd's own hooks tell what the pass saves
for the backward pass. So any model, objective and partial training can be planned on any machine in
about a second.

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
from vitkit.objectives.objective import blocks_of
from vitkit.recipes import Recipe
from vitkit.system.errors import Unsupported
from vitkit.system.machine import PrecisionChoice
from vitkit.training.optim import apply_tuning, set_residual

GPU = "cuda"  # where fake tensors claim to be; none is needed
# Images in the forward pass. Bytes are divided by it, and rounded down: it is so large that a
# tensor that does not grow with the images counts nothing
IMAGES = 2**30


class Count(NamedTuple):
    """The size of a learner, and what each image of a micro-batch takes until its backward pass."""

    parameters: int
    """Numbers in all parameters, including a teacher's."""
    trained: int
    """Numbers in those parameters that the optimiser changes."""
    block: int
    """Numbers in the parameters of the largest block: FSDP gathers one block after the other."""
    rest: int
    """Numbers in the parameters outside of blocks."""
    image: int
    """Bytes that are saved for an image."""
    image_recomputed: int
    """Bytes that are saved for it if blocks are recomputed: the blocks' inputs, and all of the
    largest block."""
    widest: int
    """Bytes of the largest tensor that is saved for it."""


def count(recipe: Recipe) -> Count:
    """Count the parameters and memory of a resolved recipe's learner. Raises VitkitError for an
    objective that looks at the values of tensors."""
    learner = learner_of_shapes(recipe)

    # Its parameters
    parameters = _numbers(learner.parameters())
    trained = _numbers(p for p in learner.parameters() if p.requires_grad)
    blocks = [_numbers(block.parameters()) for block in blocks_of(learner)]

    # What a forward pass saves, in blocks and outside of them
    saved = _record_forward(learner, recipe)
    everything = saved.outside.copy()
    recomputed = saved.outside.copy()
    largest = 0
    for read_by_block, saved_by_block in saved.calls:
        if saved_by_block:
            everything |= saved_by_block
            recomputed |= read_by_block
            largest = max(largest, saved.bytes(saved_by_block))
    return Count(
        parameters=parameters,
        trained=trained,
        block=max(blocks, default=0),
        rest=parameters - sum(blocks),
        image=saved.bytes(everything),
        image_recomputed=saved.bytes(recomputed) + largest,
        widest=max(saved.sizes[number] for number in everything),
    )


def _numbers(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def relative_flops(recipe: Recipe) -> float:
    """The operations of a step of a resolved recipe, as a multiple of those that its model takes in
    plain supervised training.

    It is below 1 if a part of the model is trained, or the encoder sees a part of each image (MAE);
    several times 1 with several views and a teacher (DINO). Raises VitkitError as `count` does.
    """
    # Plain training
    with torch.device("meta"):
        model = build(recipe.model)
    pixels = torch.empty(IMAGES, recipe.model.channels, *recipe.model.image, device="meta")
    with _FusedAttention(), FlopCounterMode(display=False) as plain:
        model.train()(pixels).float().sum().backward()

    # The recipe's. On a pretended CPU: PyTorch starts no backward pass on a GPU that is not there
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
    """What a forward pass saves for its backward pass: storages, each counted once however many
    tensors are views of it."""

    def __init__(self, parameters: Iterable[Tensor]):
        self.parameters = {_storage(parameter) for parameter in parameters}
        """The storages of parameters, which are not counted."""
        self.numbers: dict[int, int] = {}
        """The number of each storage, in the order in which they were met."""
        self.sizes: list[int] = []
        """The bytes that an image takes of each storage, by number."""
        self.alive: list[Tensor] = []
        """A tensor of each storage, so that no other one gets the same address."""
        self.outside: set[int] = set()
        """Numbers of the storages that are saved outside of blocks."""
        self.calls: list[tuple[set[int], set[int]]] = []
        """Of each call of a block: the storages that it reads, and those that it saves."""
        self.in_block = False

    def save(self, tensor: Tensor) -> None:
        """Autograd calls this with every tensor that it saves."""
        if _storage(tensor) in self.parameters:
            return
        saved = self.outside
        if self.in_block:
            _, saved = self.calls[-1]
        saved.add(self.number(tensor))

    def enter(self, block: nn.Module, inputs: tuple) -> None:
        """A block calls this before it runs: what is saved from now on belongs to its call."""
        read = {self.number(value) for value in inputs if isinstance(value, Tensor)}
        self.calls.append((read, set()))
        self.in_block = True

    def leave(self, block: nn.Module, inputs: tuple, output: Tensor) -> None:
        """A block calls this after it has run."""
        self.in_block = False

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage; a new one if it has not been met before."""
        storage = _storage(tensor)
        if storage not in self.numbers:
            self.numbers[storage] = len(self.sizes)
            self.sizes.append(tensor.untyped_storage().nbytes() // IMAGES)
            self.alive.append(tensor.detach())
        return self.numbers[storage]

    def bytes(self, numbers: set[int]) -> int:
        """The bytes that an image takes of these storages."""
        return sum(self.sizes[number] for number in numbers)


def _storage(tensor: Tensor) -> int:
    """What identifies a tensor's storage; the data pointer of a fake tensor is 0."""
    return tensor.untyped_storage()._cdata


def _record_forward(learner: nn.Module, recipe: Recipe) -> _Saved:
    """What a forward pass saves for its backward pass."""
    set_residual(learner, recipe)
    with _fake_tensors(), _autocast(recipe.precision):
        parameters = _tensors(learner, GPU)
        saved = _Saved(parameters.values())

        # Blocks that can be recomputed tell when they begin and end
        hooks = []
        for encoder in learner.modules():
            if hasattr(encoder, "recompute"):
                for block in getattr(encoder, "blocks", ()):
                    hooks.append(block.register_forward_pre_hook(saved.enter))
                    hooks.append(block.register_forward_hook(saved.leave))

        # Autograd tells what it saves; without a backward pass nothing is asked back
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
    """The loss of a forward pass with these parameters. Raises VitkitError for an objective that
    looks at the values of tensors."""
    device = next(iter(parameters.values())).device
    pixels = torch.empty(IMAGES, recipe.model.channels, *recipe.model.image, device=device)
    targets = torch.zeros(IMAGES, dtype=torch.int64, device=device)
    keys = torch.zeros(IMAGES, dtype=torch.int64, device=device)
    try:
        return functional_call(learner, parameters, (pixels, targets, keys))
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise Unsupported(
            f"what {type(recipe.objective).__name__} needs cannot be counted without running it "
            f"({str(error).splitlines()[0]}); start it, and look at what it takes"
        ) from error


@contextmanager
def _fake_tensors() -> Iterator[None]:
    """Within it tensors have shapes and no values, on any device that is named."""
    with FakeTensorMode(allow_non_fake_inputs=True), _FusedAttention():
        yield


@contextmanager
def _autocast(precision: PrecisionChoice) -> Iterator[None]:
    """Within it autocast is on for a GPU. torch.autocast cannot do it: it turns itself off without
    a GPU."""
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
    """Within it scaled dot-product attention saves what the GPU's fused kernels save. With fake
    tensors PyTorch would take the way that saves T x T weights."""

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
        torch.matmul(q @ k.mT, v)  # only to be counted as operations

        # The output lies in memory as the queries do
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
        """Two matrix products for each of the two in `forward`, and one that makes the weights
        again."""
        q, k, v, bias, _, _ = ctx.saved_tensors
        weights = q @ k.mT
        d_weights = gradient @ v.mT
        d_bias = None if bias is None else torch.empty_like(bias)
        return d_weights @ k, d_weights.mT @ q, weights.mT @ gradient, d_bias
