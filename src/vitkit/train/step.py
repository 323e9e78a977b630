"""One step: the gradient of a batch, its norm, and the update.

Legend: B examples of a batch, of all ranks together.
"""

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.data import Batch
from vitkit.system.machine import autocast
from vitkit.system.ranks import local_tensor, sum_over_ranks, world
from vitkit.train.optim import Optim
from vitkit.train.recipe import Recipe
from vitkit.train.state import State

FAR = 0x9E3779B1  # between the seeds of two rows, so that they are far from those of other steps


def set_rates(recipe: Recipe, state: State) -> float:
    """Give every parameter group its learning rate and weight decay for the next update; returns
    the base rate."""
    total = recipe.length.n
    rate = recipe.optim.rate(state.step, total)
    decay = recipe.optim.decay(state.step, total)
    for group in state.optimizer.param_groups:
        group["lr"] = rate * group["scale"]
        group["weight_decay"] = decay * group["decays"]
    return rate


def gradient(recipe: Recipe, state: State, batch: Batch) -> tuple[Tensor, Tensor]:
    """Loss of a whole batch, of which `batch` is this rank's share, and the norm of its gradient
    before clipping, () each; the clipped gradient is left on the parameters.

    Micro-batches are weighted by their share of the whole batch, so that they add up, over all
    ranks, to its gradient. What the objective draws is a function of (seed, step, example). Dropout
    is one of (seed, step, first row of the micro-batch): the same on any number of ranks that can
    keep the recipe's micro-batches.
    """
    learner = state.learner.train()
    device = state.device
    rank, world_size = world()
    count = len(batch.images)
    row = count * rank  # of the whole batch, where this rank's share begins

    keys = keys_of(recipe.seed, state.step, count * world_size)[row : row + count]
    share = [x.to(device, non_blocking=True) for x in (batch.images, batch.targets, keys)]
    micro_batches = zip(*(x.split(recipe.micro_batch) for x in share), strict=True)

    loss = torch.zeros((), device=device)
    for images, targets, keys in micro_batches:
        torch.manual_seed(recipe.seed * 1_000_003 + state.step + row * FAR)
        row += len(images)
        weight = len(images) / (count * world_size)
        with autocast(device, recipe.precision):
            images = recipe.data.preprocessing.normalise(images)
            weighted = learner(images, targets, keys) * weight
        weighted.backward()
        loss += weighted.detach()
    return sum_over_ranks(loss), clip_gradient(learner, recipe.optim)


@torch.no_grad()
def clip_gradient(learner: nn.Module, optim: Optim) -> Tensor:
    """The norm of the whole gradient, () float32, which is then clipped as `optim` says.

    Squares are summed in float64, where the device has it: float32 sums of a large layer are off by
    up to 1e-4 on a CPU, and by something else on every number of ranks.
    """
    gradients = [local_tensor(p.grad) for p in learner.parameters() if p.grad is not None]
    precise = torch.float64
    if gradients[0].device.type == "mps":
        precise = torch.float32
    local_norms = torch.stack(torch._foreach_norm(gradients, 2, precise))  # one a parameter
    squares = sum_over_ranks(local_norms.square())
    norm = squares.sum().sqrt().float()
    if optim.clip and optim.clip_each:
        shares = (optim.clip / squares.sqrt().float()).clamp(max=1)
        torch._foreach_mul_(gradients, list(shares))
    elif optim.clip:
        torch._foreach_mul_(gradients, (optim.clip / norm).clamp(max=1))
    return norm


def keys_of(seed: int, step: int, examples: int) -> Tensor:
    """int64 (B,): what an objective's randomness starts from, for every example of the batch that
    follows `step` steps."""
    generator = np.random.Generator(np.random.PCG64([seed, step]))
    return torch.from_numpy(generator.integers(0, 1 << 62, examples))


def update(recipe: Recipe, state: State) -> None:
    """Change the weights by the gradient that is on them, and let follow what follows them."""
    state.optimizer.step()
    state.learner.updated(state.step, recipe.length.n)
    state.bad_in_row = 0
    if state.average is not None:
        state.update_average(recipe.average)
