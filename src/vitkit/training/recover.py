"""Steps whose loss or gradient is not finite: they are skipped, counted and written down; after a
few in a row the run goes back to earlier weights."""

from pathlib import Path

from torch import Tensor

from vitkit.data import Batch
from vitkit.system.processes.ranks import any_rank, from_every_rank, from_rank_0, local_tensor
from vitkit.training.run import Run
from vitkit.training.state.checkpoints import checkpoints, on_schedule
from vitkit.training.state.state import State

BAD_STEPS = 3  # in a row, after which the run goes back to the last good checkpoint


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
    checkpoint = _load_good(run)
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


def _load_good(run: Run) -> Path | None:
    """Load the newest checkpoint that is intact and finite, of those that the recipe asked for;
    returns it, or None if there is none."""
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
        if _is_finite(run.state):
            return checkpoint
    return None


def _is_finite(state: State) -> bool:
    """Whether every number of the state is finite, on every rank."""
    local = [local_tensor(tensor) for tensor in state.tensors().values()]
    finite = all(tensor.isfinite().all() for tensor in local)
    return not any_rank(not finite)
