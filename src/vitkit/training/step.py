"""One step: the gradient of a batch, its norm, and the update.

Legend: B examples of a whole batch, b of a rank's share of it, m of a micro-batch, C H W an image's
channels, height and width.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Batch
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import local_tensor, sum_over_ranks, world
from vitkit.training.optim import Optim
from vitkit.training.recipe import Recipe
from vitkit.training.state.state import State

# Dropout's seed is seed * SEED_STRIDE + step + row * ROW_STRIDE. The strides are large, so that a
# row's seed is not another step's; a run of more than SEED_STRIDE steps meets seeds of the next one
SEED_STRIDE = 1_000_003
ROW_STRIDE = 0x9E3779B1


def set_rates(recipe: Recipe, state: State, position: float) -> float:
    """Give every parameter group its learning rate and weight decay for the next update, by the
    position in the schedule; returns the base rate."""
    total = recipe.length.n
    rate = recipe.optim.rate(position, total)
    decay = recipe.optim.decay(position, total)
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
        group["weight_decay"] = decay * group["decays"]
    return rate


def gradient(recipe: Recipe, state: State, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss of a whole batch, of which `batch` is this rank's share, and the norm of its
    gradient before clipping: () each. The clipped gradient is left on the parameters.

    Micro-batches and ranks change neither: each micro-batch is weighted by its share of the whole
    batch, and what the objective draws is a function of (seed, step, example). Dropout is drawn by
    (seed, step, first row of the micro-batch): the same on any number of ranks that can keep the
    recipe's micro-batches.

    The learner must be in training mode.
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
    share = [x.to(device, non_blocking=True) for x in (batch.images, batch.targets, share_keys)]
    micro_batches = zip(*(x.split(recipe.micro_batch) for x in share), strict=True)

    # Their gradients add up on the parameters
    loss = torch.zeros((), device=device)
    for images, targets, keys in micro_batches:  # (m, C, H, W) uint8, (m,) or (m, K), (m,)
        _seed(device, recipe.seed * SEED_STRIDE + state.step + first_row * ROW_STRIDE)
        first_row += len(images)
        weight = len(images) / batch_size
        with autocast(device, recipe.precision):
            images = recipe.data.preprocessing.normalise(images)
            weighted = learner(images, targets, keys) * weight
        weighted.backward()
        loss += weighted.detach()

    # Over all ranks: FSDP has summed the gradients in the backward pass
    return sum_over_ranks(loss), clip_gradient(state.parameters.values(), recipe.optim)


def _seed(device: torch.device, seed: int) -> None:
    """torch.manual_seed for the CPU and this device alone. The other one seeds every kind of device
    that there could be, and takes a hundred times as long."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@torch.no_grad()
def clip_gradient(parameters: Iterable[Tensor], optim: Optim) -> Tensor:
    """Clip the gradient as `optim` says; returns the norm that it had before, () float32."""
    gradients = [local_tensor(p.grad) for p in parameters if p.grad is not None]

    # The norm, summed in float64: float32 sums of a large layer are off by up to 1e-4 on a CPU, by a
    # different amount for each number of ranks
    dtype = torch.float64
    if gradients[0].device.type == "mps":  # which has no float64
        dtype = torch.float32
    local_norms = torch.stack(torch._foreach_norm(gradients, 2, dtype))  # one a parameter
    squares = sum_over_ranks(local_norms.square())
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


def update(recipe: Recipe, state: State, position: float) -> None:
    """Change the weights by their gradient, then what follows the weights: a teacher, the average.
    The position is that of the finished step in the schedule."""
    state.optimizer.step()
    state.bad_in_row = 0
    state.learner.updated(position, recipe.length.n)
    if state.average is not None:
        state.update_average(recipe.average)
