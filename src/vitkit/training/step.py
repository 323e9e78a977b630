"""One step: the gradient of a batch, its norm, and the update; or, if they are not finite, none.

Nothing here waits for the device: outcomes.py looks at what a step gave, some steps later.

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

# Dropout's seed is seed * SEED_STRIDE + step + row * ROW_STRIDE. The strides are large, so that a
# row's seed is not another step's; a run of more than SEED_STRIDE steps meets seeds of the next one
SEED_STRIDE = 1_000_003
ROW_STRIDE = 0x9E3779B1


class StepOutcome(NamedTuple):
    """The outcome of a step, over all ranks, on the device: () each."""

    loss: Tensor
    """Of the whole batch."""
    norm: Tensor
    """Of its gradient before clipping."""
    stops: Tensor
    """How many ranks were asked to stop."""


def set_rates(recipe: Recipe, state: State, position: float) -> float:
    """Give every parameter group its learning rate and weight decay for the next update, by the
    position in the schedule; returns the base rate."""
    total = recipe.length.in_steps
    rate = recipe.optim.rate(position, total)
    decay = recipe.optim.decay(position, total)
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
        group["weight_decay"] = decay * group["decays"]
    return rate


def gradient(recipe: Recipe, state: State, batch: Batch, stop: Stop | None = None) -> StepOutcome:
    """The loss of a whole batch, of which `batch` is this rank's share, and the norm of its
    gradient before clipping. The clipped gradient is left on the parameters. All ranks learn in the
    same exchange how many of them were asked to `stop`.

    Micro-batches and ranks change neither: each micro-batch is weighted by its share of the whole
    batch, and what the objective draws is a function of (seed, step, example). Dropout is drawn by
    (seed, step, first row of the micro-batch): the same on any number of ranks that can keep the
    recipe's micro-batches.

    The learner must be in training mode. Raises Interrupted between two micro-batches of a single
    process that was asked to stop.
    """
    learner = state.learner
    device = state.device
    rank, world_size = world()
    share_size = len(batch.images)  # b
    batch_size = share_size * world_size  # B
    first_row = share_size * rank  # of this rank's share, then of its next micro-batch

    # This rank's share, on its device, in micro-batches
    batch_keys = keys_of(recipe.seed, state.step, batch_size)
    share_keys = batch_keys[first_row : first_row + share_size]
    if device.type == "cuda":
        share_keys = share_keys.pin_memory()  # or the copy to the device would wait
    share = _sent([batch.images, batch.targets, share_keys], device)
    micro_batches = list(zip(*(x.split(recipe.micro_batch) for x in share), strict=True))

    # Their gradients add up on the parameters, and over the ranks with the last
    loss = torch.zeros((), device=device)
    for number, (images, targets, keys) in enumerate(micro_batches, 1):
        if stop is not None and stop.asked and world_size == 1:
            raise Interrupted  # the step is begun again when the run continues
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

    # Over all ranks: FSDP has summed the gradients in the backward pass
    asked = float(stop is not None and stop.asked)
    beside = torch.stack([loss, torch.full((), asked, device=device)])
    norm = clip_gradient(state.parameters.values(), recipe.optim, beside)
    return StepOutcome(beside[0], norm, beside[1])


def _sent(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors on the device. Page-locked ones go to a GPU while it computes an earlier step."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    copying = _stream_of_copies(device)
    with torch.cuda.stream(copying):
        sent = [tensor.to(device, non_blocking=True) for tensor in tensors]
    computing = torch.cuda.current_stream(device)
    computing.wait_stream(copying)
    for tensor in sent:
        tensor.record_stream(computing)  # its memory is not given to the next copy before that
    return sent


@cache
def _stream_of_copies(device: torch.device) -> torch.cuda.Stream:
    """A queue of the GPU's own for copies, which its other work does not wait for."""
    return torch.cuda.Stream(device)


def _seed(device: torch.device, seed: int) -> None:
    """torch.manual_seed for the CPU and this device alone. The other one seeds every kind of device
    that there could be, and takes a hundred times as long."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@torch.no_grad()
def clip_gradient(
    parameters: Iterable[Tensor], optim: Optim, beside: Tensor | None = None
) -> Tensor:
    """Clip the gradient as `optim` says; returns the norm that it had before, () float32.

    beside: numbers of each rank, (n,) float32, which become their sums over the ranks, in place:
    they travel with those of the norm.
    """
    with_gradient = [(p, p.grad) for p in parameters if p.grad is not None]
    gradients = [local_tensor(gradient) for _, gradient in with_gradient]

    # The norm, summed in float64: float32 sums of a large layer are off by up to 1e-4 on a CPU, by
    # a different amount for each number of ranks
    dtype = torch.float64
    if gradients[0].device.type == "mps":  # which has no float64
        dtype = torch.float32
    squares = torch.stack(torch._foreach_norm(gradients, 2, dtype)).square()  # one a parameter
    if beside is None:
        sum_over_ranks(squares)
    else:
        sums = sum_over_ranks(torch.cat([beside.to(dtype), squares]))
        beside.copy_(sums[: len(beside)])
        squares = sums[len(beside) :]
    squares = squares / replicas_of(with_gradient[0][0])  # each of them has added its own
    norm = squares.sum().sqrt().float()

    # Scaled down to the largest norm that is allowed, each parameter's own or the common one
    if optim.clip and optim.clip_each:
        factors = (optim.clip / squares.sqrt().float()).clamp(max=1)
        torch._foreach_mul_(gradients, list(factors))
    elif optim.clip:
        torch._foreach_mul_(gradients, (optim.clip / norm).clamp(max=1))
    return norm


def keys_of(seed: int, step: int, examples: int) -> Tensor:
    """int64 (B,): a random number for each example of the batch that follows `step` steps. An
    objective draws what it needs from it."""
    generator = np.random.Generator(np.random.PCG64([seed, step]))
    return torch.from_numpy(generator.integers(0, 1 << 62, examples))


def is_finite(loss: Tensor, norm: Tensor) -> Tensor:
    """bool (): whether a step may change the weights."""
    return torch.isfinite(loss + norm)


def advance(
    recipe: Recipe, state: State, outcome: StepOutcome, position: float, at_once: bool
) -> None:
    """Change the weights by their gradient, which goes, then what follows the weights: a teacher,
    the average. If the step is not finite nothing changes.

    position: that of the finished step in the schedule.
    at_once: whether this process looks if it is finite, and waits for the device; else the device
    does, for the same result.
    """
    finite = is_finite(outcome.loss, outcome.norm)
    if not at_once:
        update(recipe, state, position, bad=(~finite).float())
    elif finite:
        update(recipe, state, position)
    state.optimizer.zero_grad()


def update(recipe: Recipe, state: State, position: float, bad: Tensor | None = None) -> None:
    """Make the update of the weights. bad: float32 () on the device, 1 if nothing may change; None
    is 0."""
    take_step(state.optimizer, bad)
    with _unless(bad, state.learner):
        state.learner.updated(position, recipe.length.in_steps)
    state.update_average(recipe.average, bad)


@contextmanager
def _unless(bad: Tensor | None, learner: Learner) -> Iterator[None]:
    """A block after which what a learner adds to the trained weights is as it was, if `bad` is 1."""
    if bad is None or type(learner).updated is Learner.updated:
        yield
        return
    frozen = [p for p in learner.parameters() if not p.requires_grad]
    tensors = [local_tensor(tensor.detach()) for tensor in [*frozen, *learner.buffers()]]
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, earlier in zip(tensors, before, strict=True):
        tensor.copy_(torch.where(bad > 0, earlier, tensor))
