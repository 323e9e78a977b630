"""One training step: the gradient of a batch, its norm, and the update, which is skipped if they are not
finite.

Nothing here waits for the device: outcomes.py reads the outcome of a step some steps later.

Legend: B examples of a whole batch, b of a rank's share of it, m of a micro-batch, C H W an image's
channels, height and width.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Batch
from vitkit.objectives import Learner
from vitkit.recipes import Optim, Recipe
from vitkit.system.errors import BadSettings, Interrupted
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import (
    local_tensor,
    replicas_of,
    sum_gradients,
    sum_over_ranks,
    world,
)
from vitkit.training.optim import take_step
from vitkit.training.schedule import Stop
from vitkit.training.state.state import State

# Dropout's seed is seed * SEED_STRIDE + step + row * ROW_STRIDE. The strides are large, so that the seeds of
# different rows and steps differ; after SEED_STRIDE steps a run repeats seeds of the run with the next seed
SEED_STRIDE = 1_000_003
ROW_STRIDE = 0x9E3779B1


class StepOutcome(NamedTuple):
    """The outcome of a step over all ranks: scalars on the device."""

    loss: Tensor
    """Mean loss of the whole batch, ()."""
    norm: Tensor
    """Norm of the gradient before clipping, ()."""
    stops: Tensor
    """Number of ranks that were asked to stop, ()."""


def set_rates(recipe: Recipe, state: State, position: float) -> float:
    """Set the learning rate and weight decay of every parameter group for the next update, from the
    position in the schedule; returns the base learning rate."""
    total = recipe.length.in_steps
    rate = recipe.optim.rate(position, total)
    decay = recipe.optim.decay(position, total)
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
        group["weight_decay"] = decay * group["decays"]
    return rate


def gradient(recipe: Recipe, state: State, batch: Batch, stop: Stop | None = None) -> StepOutcome:
    """Compute the gradient of a whole batch, of which `batch` is this rank's share, and clip it; returns
    the loss and the norm before clipping. The same all-reduce counts the ranks that were asked to `stop`.

    The result does not depend on micro-batches and ranks: each micro-batch is weighted by its share of the
    whole batch, and the objective's random numbers are a function of (seed, step, example). Those of dropout
    are a function of (seed, step, first row of the micro-batch), so they do not depend on the number of ranks
    as long as the micro-batches stay the same.

    The learner must be in training mode. Raises Interrupted between two micro-batches if this process is
    the only one and was asked to stop.
    """
    learner = state.learner
    device = state.device
    rank, world_size = world()
    share_size = len(batch.images)  # b
    batch_size = share_size * world_size  # B
    first_row = share_size * rank  # first row of this rank's share, then of its next micro-batch

    # Copy this rank's share to its device, and split it into micro-batches
    batch_keys = keys_of(recipe.seed, state.step, batch_size)
    share_keys = batch_keys[first_row : first_row + share_size]
    if device.type == "cuda":
        share_keys = share_keys.pin_memory()  # makes the copy to the device asynchronous
    share = _sent([batch.images, batch.targets, share_keys], device)
    micro_batches = list(zip(*(x.split(recipe.micro_batch) for x in share), strict=True))

    # Accumulate the gradients; those of all ranks are summed with the last micro-batch
    loss = torch.zeros((), device=device)
    for number, (images, targets, keys) in enumerate(micro_batches, 1):
        if stop is not None and stop.asked and world_size == 1:
            raise Interrupted  # the run will repeat this step when it continues
        # (m, C, H, W) uint8, (m,) or (m, K), (m,)
        sum_gradients(learner, now=number == len(micro_batches))
        _seed(device, recipe.seed * SEED_STRIDE + state.step + first_row * ROW_STRIDE)
        first_row += len(images)
        weight = len(images) / batch_size
        with autocast(device, recipe.arithmetic):
            images = recipe.data.preprocessing.normalise(images)
            mean = learner(images, targets, keys)
            if not isinstance(mean, Tensor):
                raise BadSettings(
                    f"the objective's learner ({type(learner).__name__}) returned "
                    f"{type(mean).__name__}; its forward returns the mean loss, a tensor"
                )
            weighted = mean * weight
        weighted.backward()
        loss += weighted.detach()

    # Sum loss and requests over all ranks; FSDP has summed the gradients in the backward pass
    asked = float(stop is not None and stop.asked)
    beside = torch.stack([loss, torch.full((), asked, device=device)])
    norm = clip_gradient(state.parameters.values(), recipe.optim, beside)
    return StepOutcome(beside[0], norm, beside[1])


def _sent(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    """Copies of the tensors on the device. Pinned ones are copied to a GPU while it computes an earlier
    step."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    copying = _stream_of_copies(device)
    with torch.cuda.stream(copying):
        sent = [tensor.to(device, non_blocking=True) for tensor in tensors]
    computing = torch.cuda.current_stream(device)
    computing.wait_stream(copying)
    for tensor in sent:
        # Keeps the memory from being reused by the next copy too early
        tensor.record_stream(computing)
    return sent


@cache
def _stream_of_copies(device: torch.device) -> torch.cuda.Stream:
    """A CUDA stream for copies, so that they overlap with computation."""
    return torch.cuda.Stream(device)


def _seed(device: torch.device, seed: int) -> None:
    """Seed the CPU and this device. torch.manual_seed seeds every type of device, and takes a hundred times
    as long."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@torch.no_grad()
def clip_gradient(
    parameters: Iterable[Tensor], optim: Optim, beside: Tensor | None = None
) -> Tensor:
    """Clip the gradient according to `optim`; returns its norm before clipping, () float32.

    beside: numbers of this rank, (n,) float32, that are summed over the ranks in place, in the same
        all-reduce as the norm.
    """
    with_gradient = [(p, p.grad) for p in parameters if p.grad is not None]
    gradients = [local_tensor(gradient) for _, gradient in with_gradient]

    # The norm, summed in float64: float32 sums of a large layer are off by up to 1e-4 on a CPU, by
    # a different amount for each number of ranks
    dtype = torch.float64
    if gradients[0].device.type == "mps":  # does not support float64
        dtype = torch.float32
    squares = torch.stack(torch._foreach_norm(gradients, 2, dtype)).square()  # one per parameter
    if beside is None:
        sum_over_ranks(squares)
    else:
        sums = sum_over_ranks(torch.cat([beside.to(dtype), squares]))
        beside.copy_(sums[: len(beside)])
        squares = sums[len(beside) :]
    squares = squares / replicas_of(with_gradient[0][0])  # every replica has added the same squares
    norm = squares.sum().sqrt().float()

    # Scale down to the largest allowed norm, each parameter's own or the total one
    if optim.clip and optim.clip_each:
        factors = (optim.clip / squares.sqrt().float()).clamp(max=1)
        torch._foreach_mul_(gradients, list(factors))
    elif optim.clip:
        torch._foreach_mul_(gradients, (optim.clip / norm).clamp(max=1))
    return norm


def keys_of(seed: int, step: int, examples: int) -> Tensor:
    """A random key for each example of the batch after `step` steps, int64 (B,), from which an objective
    derives its random numbers."""
    generator = np.random.Generator(np.random.PCG64([seed, step]))
    return torch.from_numpy(generator.integers(0, 1 << 62, examples))


def is_finite(loss: Tensor, norm: Tensor) -> Tensor:
    """Whether loss and gradient norm are finite, so that a step may change the weights: bool ()."""
    return torch.isfinite(loss + norm)


def advance(
    recipe: Recipe, state: State, outcome: StepOutcome, position: float, synchronous: bool
) -> None:
    """Update the weights, then what depends on them (a teacher, the average), and delete the gradient. If
    the step is not finite, nothing is updated.

    position: position of the finished step in the schedule.
    synchronous: whether to check on the CPU, waiting for the device, if the step is finite; otherwise the
        device checks it, with the same result.
    """
    finite = is_finite(outcome.loss, outcome.norm)
    if not synchronous:
        update(recipe, state, position, bad=(~finite).float())
    elif finite:
        update(recipe, state, position)
    state.optimizer.zero_grad()


def update(recipe: Recipe, state: State, position: float, bad: Tensor | None = None) -> None:
    """Update the weights, the learner and the average. bad: float32 () on the device, 1 if nothing may
    change; None is 0."""
    take_step(state.optimizer, bad)
    with _unless(bad, state.learner):
        state.learner.updated(position, recipe.length.in_steps)
    state.update_average(recipe.average, bad)


@contextmanager
def _unless(bad: Tensor | None, learner: Learner) -> Iterator[None]:
    """Context that, if `bad` is 1, restores at its end the frozen parameters and buffers of a learner."""
    if bad is None or type(learner).updated is Learner.updated:
        yield
        return
    frozen = [p for p in learner.parameters() if not p.requires_grad]
    tensors = [local_tensor(tensor.detach()) for tensor in [*frozen, *learner.buffers()]]
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, earlier in zip(tensors, before, strict=True):
        tensor.copy_(torch.where(bad > 0, earlier, tensor))
