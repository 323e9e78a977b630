"""What a training step needs, counted without running it: its tensors have shapes and no memory.

A recipe's learner goes through a forward pass on fake tensors (PyTorch's FakeTensorMode) that take themselves for a GPU's, and
autograd's own hooks tell what it saves for the backward pass. So any model, objective and partial training can be planned, on
any machine, in about a second.
"""

from collections.abc import Iterator
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
from vitkit.system.machine import Precision
from vitkit.train.recipe import Recipe
from vitkit.train.tune import apply_tuning

GPU = "cuda"  # none is needed
IMAGES = 2**30  # so many that of a tensor that does not grow with them no byte falls to one


class Count(NamedTuple):
    """The size of a learner, in numbers, and what an image keeps until its backward pass, in bytes."""

    parameters: int
    """Numbers in all parameters, a teacher's too."""
    trained: int
    """Those that the optimiser changes."""
    block: int
    """Those of the largest block: FSDP gathers one block after the other."""
    rest: int
    """Those beside all blocks."""
    image: int
    """Bytes that an image keeps."""
    image_recomputed: int
    """The same where blocks are recomputed: their inputs, and all that the largest one keeps."""
    widest: int
    """Bytes of the largest single tensor among them."""


def count(recipe: Recipe) -> Count:
    """Count a resolved recipe's learner. Raises ValueError for an objective that cannot run without values."""
    learner = learner_of_shapes(recipe)

    # Its parameters
    parameters = sum(p.numel() for p in learner.parameters())
    trained = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    blocks = [sum(p.numel() for p in block.parameters()) for block in blocks_of(learner)]

    # What an image keeps
    saved = _run(learner, recipe)
    sizes = saved.sizes
    calls = [call for call in saved.calls if call.saved]
    everything = saved.outside.union(*(call.saved for call in calls))
    inputs = saved.outside.union(*(call.inputs for call in calls))
    largest = max((_total(sizes, call.saved) for call in calls), default=0)
    return Count(
        parameters=parameters,
        trained=trained,
        block=max(blocks, default=0),
        rest=parameters - sum(blocks),
        image=_total(sizes, everything),
        image_recomputed=_total(sizes, inputs) + largest,
        widest=max(sizes[memory] for memory in everything),
    )


def relative_flops(recipe: Recipe) -> float:
    """How many times the operations of its model's plain training a step of a resolved recipe takes.

    Less than once where a part of the model is trained, or an encoder sees a part of each image; several times with several
    views and a teacher. Raises ValueError as `count` does.
    """
    with torch.device("meta"):
        model = build(recipe.model)
    pixels = torch.empty(IMAGES, recipe.model.channels, *recipe.model.image, device="meta")
    with _FusedAttention(), FlopCounterMode(display=False) as plain:
        model.train()(pixels).float().sum().backward()

    # on a pretended CPU: without a GPU, PyTorch does not start a backward pass on one
    learner = learner_of_shapes(recipe)
    with _shapes(), FlopCounterMode(display=False) as counter:
        _loss(learner, _parameters(learner, "cpu"), recipe).backward()
    return counter.get_total_flops() / plain.get_total_flops()


def learner_of_shapes(recipe: Recipe) -> nn.Module:
    """What a resolved recipe trains, on the meta device: shapes without values."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = build(recipe.model)
        apply_tuning(model, recipe.tune)
        learner = recipe.objective.learner(model, recipe.data.preprocessing)
    return learner.to("meta").train()


def blocks_of(learner: nn.Module) -> list[nn.Module]:
    """The layers of all its encoders."""
    return [block for part in learner.modules() for block in getattr(part, "blocks", ())]


class _Call:
    """One call of a block that could be recomputed: the memories that it reads, and those that it saves."""

    def __init__(self):
        self.inputs: set[int] = set()
        self.saved: set[int] = set()


class _Saved:
    """The memories that a forward pass saves for its backward pass, by number, with the bytes of each that an image takes."""

    def __init__(self, parameters: dict[str, Tensor]):
        self.parameters = {_memory(parameter) for parameter in parameters.values()}
        self.numbers: dict[int, int] = {}
        self.sizes: list[int] = []
        self.alive: list[Tensor] = []  # so that no other tensor gets the same memory
        self.outside: set[int] = set()
        self.calls: list[_Call] = []
        self.call: _Call | None = None

    def save(self, tensor: Tensor) -> None:
        """Autograd calls this with every tensor that it saves; no backward pass will ask for it."""
        if _memory(tensor) not in self.parameters:
            memories = self.outside if self.call is None else self.call.saved
            memories.add(self.number(tensor))

    def enter(self, block: nn.Module, inputs: tuple) -> None:
        """A block is called: what is saved from now on is its own."""
        self.call = _Call()
        self.calls.append(self.call)
        for value in inputs:
            if isinstance(value, Tensor):
                self.call.inputs.add(self.number(value))

    def leave(self, block: nn.Module, inputs: tuple, output: Tensor) -> None:
        """A block has answered."""
        self.call = None

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's memory, which it may share with others."""
        memory = _memory(tensor)
        if memory not in self.numbers:
            self.numbers[memory] = len(self.sizes)
            self.sizes.append(tensor.untyped_storage().nbytes() // IMAGES)
            self.alive.append(tensor.detach())
        return self.numbers[memory]


def _memory(tensor: Tensor) -> int:
    """What tells memories apart; fake ones have no address."""
    return tensor.untyped_storage()._cdata


def _total(sizes: list[int], memories: set[int]) -> int:
    return sum(sizes[memory] for memory in memories)


def _run(learner: nn.Module, recipe: Recipe) -> _Saved:
    """What a forward pass saves."""
    with _shapes(), _autocast(recipe.precision):
        parameters = _parameters(learner, GPU)
        saved = _Saved(parameters)
        encoders = [part for part in learner.modules() if hasattr(part, "recompute")]
        blocks = [block for encoder in encoders for block in getattr(encoder, "blocks", ())]
        hooks = [block.register_forward_pre_hook(saved.enter) for block in blocks]
        hooks += [block.register_forward_hook(saved.leave) for block in blocks]
        try:
            with torch.autograd.graph.saved_tensors_hooks(saved.save, lambda nothing: nothing):
                _loss(learner, parameters, recipe)
        finally:
            for hook in hooks:
                hook.remove()
    return saved


def _parameters(learner: nn.Module, device: str) -> dict[str, Tensor]:
    """Its parameters and buffers by name, on a device."""
    tensors = {}
    for name, tensor in (*learner.named_parameters(), *learner.named_buffers()):
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        tensors[name] = empty.requires_grad_(tensor.requires_grad)
    return tensors


def _loss(learner: nn.Module, parameters: dict[str, Tensor], recipe: Recipe) -> Tensor:
    """A forward pass. Raises ValueError for an objective that asks for the values of tensors."""
    device = next(iter(parameters.values())).device
    pixels = torch.empty(IMAGES, recipe.model.channels, *recipe.model.image, device=device)
    targets = torch.zeros(IMAGES, dtype=torch.int64, device=device)
    keys = torch.zeros(IMAGES, dtype=torch.int64, device=device)
    try:
        return functional_call(learner, parameters, (pixels, targets, keys))
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise ValueError(
            f"what {type(recipe.objective).__name__} needs cannot be counted without running it "
            f"({str(error).splitlines()[0]}); start it, and look at what it takes"
        ) from error


@contextmanager
def _shapes() -> Iterator[None]:
    """Where tensors have shapes and no values, on any device that is named."""
    with FakeTensorMode(allow_non_fake_inputs=True), _FusedAttention():
        yield


@contextmanager
def _autocast(precision: Precision) -> Iterator[None]:
    """The GPU's arithmetic; torch.autocast itself does nothing where there is no GPU."""
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
    """Scaled dot-product attention that saves what the GPU's kernels save. Fake tensors would take the way that keeps T x T
    weights."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v, *rest = args
        bias = rest[0] if rest else (kwargs or {}).get("attn_mask")
        if q.device.type == GPU and torch.is_autocast_enabled(GPU):
            low = torch.get_autocast_dtype(GPU)
            q, k, v = q.to(low), k.to(low), v.to(low)
        return _Fused.apply(q, k, v, bias)


class _Fused(torch.autograd.Function):
    """The fused kernel: (B, H, Q, E), (B, H, T, E), (B, H, T, V) -> (B, H, Q, V)."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Saved are its inputs, its output, which lies in memory as the queries do, and the softmax's sums."""
        torch.matmul(q @ k.mT, v)  # for the operations
        out = torch.empty_like(q.transpose(1, 2))  # (B, Q, H, E)
        if v.shape[-1] != q.shape[-1]:
            out = q.new_empty(*out.shape[:-1], v.shape[-1])
        out = out.transpose(1, 2)
        sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, bias, out, sums)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Two products for each of the two before, and one to have the weights again."""
        q, k, v, bias, _, _ = ctx.saved_tensors
        weights = q @ k.mT
        d_weights = gradient @ v.mT
        d_bias = None if bias is None else torch.empty_like(bias)
        return d_weights @ k, d_weights.mT @ q, weights.mT @ gradient, d_bias
