"""Steps whose loss or gradient is not finite: skipped, counted, written down; after a few, the run
goes back."""

from pathlib import Path

from torch import Tensor

from vitkit.data import Batch
from vitkit.system.ranks import any_rank, from_every_rank, from_rank_0, local_tensor
from vitkit.train.checkpoints import checkpoints, on_schedule
from vitkit.train.run import Run
from vitkit.train.state import State

BAD_STEPS = 3  # in a row, before the run goes back to the last good checkpoint


def skip(run: Run, batch: Batch, loss: Tensor, norm: Tensor) -> None:
    """Count a step whose loss or gradient is not finite, keep its batch for replay, and go back if
    it goes on.

    Going back takes the weights of the last good checkpoint and goes on with the batches that come
    next: the same batches would lead to the same place. Raises FloatingPointError if that has been
    tried.
    """
    state = run.state
    state.skipped += 1
    state.bad_in_row += 1
    shares = from_every_rank(batch.indices.tolist())
    indices = [index for share in shares for index in share]
    run.log("skipped", state.step, loss=loss.item(), norm=norm.item(), indices=indices)
    run.log.say(
        f"step {state.step}: loss {loss.item()}, gradient norm {norm.item()}: skipped; its batch "
        "is listed in "
        f"{run.log.path}"
    )
    if state.bad_in_row == BAD_STEPS:
        go_back(run)


def go_back(run: Run) -> None:
    """Take the weights of the newest good checkpoint, and go on from here with them.

    Raises FloatingPointError if the run has gone back before, or no checkpoint is good.
    """
    state = run.state
    advice = (
        f"lower --optim.lr (it is {run.recipe.optim.lr:g}), lengthen --optim.warmup, or use "
        f"--precision float32"
    )
    if state.rollbacks:
        raise FloatingPointError(
            f"{BAD_STEPS} steps in a row were not finite at step {state.step}, after going back "
            f"once already; {advice}"
        )
    now = state.step
    skipped = state.skipped
    checkpoint = _load_good(run)
    if checkpoint is None:
        raise FloatingPointError(
            f"{BAD_STEPS} steps in a row were not finite and no checkpoint is; {advice}"
        )
    run.log.say(
        f"{BAD_STEPS} steps in a row were not finite: back to the weights of step {state.step}, on "
        "with new batches"
    )

    # Weights of then, counters of now
    state.step = now
    state.skipped = skipped
    state.bad_in_row = 0
    state.rollbacks = 1
    run.log("rollback", state.step, checkpoint=checkpoint.name)
    state.save(run.run_dir, run.recipe.keep)


def _load_good(run: Run) -> Path | None:
    """Load the newest checkpoint that is intact and finite, of those that the recipe asked for;
    None if there is none."""
    run.state.wait()
    scheduled = from_rank_0(lambda: [p for p in checkpoints(run.run_dir) if on_schedule(p)])
    for checkpoint in scheduled:
        try:
            run.state.load(checkpoint)
        except ValueError as error:
            run.log.say(f"{error}; trying the one before it")
            continue
        if _is_finite(run.state):
            return checkpoint
    return None


def _is_finite(state: State) -> bool:
    """Whether every number of the state is, on every rank."""
    local = map(local_tensor, state.tensors().values())
    return not any_rank(not all(tensor.isfinite().all() for tensor in local))
