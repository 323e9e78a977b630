"""One step: the gradient of a batch, its norm, and the update; or, if they are not finite, none.

A step whose loss or gradient is not finite is skipped, counted and written down; after a few in a
row the run goes back to earlier weights.

Legend: B examples of a whole batch, b of a rank's share of it, m of a micro-batch, C H W an image's
channels, height and width.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Batch
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import (
    any_rank,
    from_every_rank,
    from_rank_0,
    local_tensor,
    sum_over_ranks,
    world,
)
from vitkit.training.optim import Optim
from vitkit.training.recipe import Recipe
from vitkit.training.run import Run
from vitkit.training.state.checkpoints import checkpoints, on_schedule
from vitkit.training.state.state import State

BAD_STEPS = 3  # in a row, after which the run goes back to the last good checkpoint

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

    # The norm, summed in float64: float32 sums of a large layer are off by up to 1e-4 on a CPU, by
    # a different amount for each number of ranks
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


# A step that is not finite


def skip(run: Run, batch: Batch, loss: Tensor, norm: Tensor) -> None:
    """Count a step whose loss or gradient is not finite and write its batch down, for replay. After
    BAD_STEPS of them in a row, go back; see `go_back` for what it raises."""
    state = run.state
    state.skipped += 1
    state.bad_in_row += 1

    # The whole batch, of which each rank has a share
    indices = []
    for share in from_every_rank(batch.indices.tolist()):
        indices += share
    run.log("skipped", state.step, loss=loss.item(), norm=norm.item(), indices=indices)
    run.log.say(
        f"step {state.step}: loss {loss.item()}, gradient norm {norm.item()}: skipped; its batch "
        f"is listed in {run.log.path}"
    )
    if state.bad_in_row == BAD_STEPS:
        go_back(run)


def go_back(run: Run) -> None:
    """Load the newest good checkpoint, and go on from here with its weights: the next batches are
    new ones, for the same ones would lead to the same place.

    Raises FloatingPointError if the run has gone back before, or no checkpoint is good.
    """
    state = run.state
    advice = (
        f"lower --optim.lr (it is {run.recipe.optim.lr:g}), lengthen --optim.warmup, or use "
        "--precision float32"
    )
    if state.rollbacks:
        raise FloatingPointError(
            f"{BAD_STEPS} steps in a row were not finite at step {state.step}, after going back "
            f"once already; {advice}"
        )

    step_now = state.step
    skipped = state.skipped
    checkpoint = _load_good_checkpoint(run)
    if checkpoint is None:
        raise FloatingPointError(
            f"{BAD_STEPS} steps in a row were not finite and no checkpoint is; {advice}"
        )
    run.log.say(
        f"{BAD_STEPS} steps in a row were not finite: back to the weights of step {state.step}, on "
        "with new batches"
    )

    # The batches go on from here, so the counters do not go back
    state.step = step_now
    state.skipped = skipped
    state.bad_in_row = 0
    state.rollbacks = 1

    # Saved, so that a run that is killed after this does not go back once more
    run.log("rollback", state.step, checkpoint=checkpoint.name)
    state.save(run.run_dir, run.recipe.keep)


def _load_good_checkpoint(run: Run) -> Path | None:
    """Load the newest checkpoint that is intact and finite on every rank, of those that the recipe
    asked for; returns it, or None if there is none."""
    run.state.wait()
    scheduled = from_rank_0(
        lambda: [path for path in checkpoints(run.run_dir) if on_schedule(path)]
    )
    for checkpoint in scheduled:
        try:
            run.state.load(checkpoint)
        except ValueError as error:
            run.log.say(f"{error}; trying the one before it")
            continue
        local = [local_tensor(tensor) for tensor in run.state.tensors().values()]
        finite = all(tensor.isfinite().all() for tensor in local)
        if not any_rank(not finite):
            return checkpoint
    return None
