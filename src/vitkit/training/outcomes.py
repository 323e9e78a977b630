"""What steps gave, looked at some steps later: losses, steps that are not finite, and requests to
stop.

Work is queued on a GPU ahead of time. Reading a number of the current step waits for that step, and
the GPU then waits for new work. So a step that is not finite is skipped on the device,
and what it gave is looked at LAG steps later, when it has long been there; every rank looks at the
same steps. Before anything is written down (a point of the curve, an evaluation, a checkpoint) all
steps are looked at. So a run writes and becomes the same, to the bit, whenever it looks.

A skipped step is counted and written down; after a few in a row the run goes back to earlier
weights, and does the steps after the last of them again.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.data import Batch
from vitkit.system.errors import Diverged, VitkitError
from vitkit.system.processes.ranks import any_rank, from_every_rank, from_rank_0, local_tensor
from vitkit.training.run import Run
from vitkit.training.state.checkpoints import checkpoints, on_schedule
from vitkit.training.step import StepOutcome, is_finite

LAG = {"cuda": 2}  # steps, by kind of device: others compute what they are told at once
BAD_STEPS = 3  # in a row, after which the run goes back to the last good checkpoint


class Awaited(NamedTuple):
    """A step that has not been looked at."""

    step: int
    indices: Tensor
    """Indices of the examples in this rank's share of the batch."""
    numbers: Tensor
    """The Outcome of the step, (3,), while it is copied to the CPU."""
    arrived: torch.cuda.Event | None
    """Event that the GPU records after the copy; None if the numbers are on the CPU already."""


@dataclass
class Outcomes:
    """The steps whose outcomes have not been read yet, and the outcome that was read last."""

    lag: int
    awaited: deque[Awaited] = field(default_factory=deque)
    loss: float = 0.0
    norm: float = 0.0
    stops: bool = False
    """Whether a rank was asked to stop."""

    @classmethod
    def on(cls, device: torch.device) -> "Outcomes":
        """The outcomes of a run on this device that begins or continues."""
        return cls(LAG.get(device.type, 0))

    def add(self, step: int, batch: Batch, outcome: StepOutcome) -> None:
        """A step that was done, with this rank's share of its batch."""
        numbers = torch.stack(outcome)
        arrived = None
        if numbers.is_cuda:
            on_device = numbers
            numbers = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
            numbers.copy_(on_device, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(on_device.device))
        self.awaited.append(Awaited(step, batch.indices, numbers, arrived))

    def arrived(self, lag: int) -> Iterator[Awaited]:
        """The steps that are more than `lag` steps old, in order, which are forgotten. Waits for what
        they gave."""
        while len(self.awaited) > lag:
            oldest = self.awaited.popleft()
            if oldest.arrived is not None:
                oldest.arrived.synchronize()
            self.loss, self.norm, stops = oldest.numbers.tolist()
            self.stops = self.stops or stops > 0
            yield oldest


def look(run: Run, outcomes: Outcomes, lag: int | None = None) -> bool:
    """Look at the steps that are more than `lag` steps old; by default at those that it is time
    for. Every rank calls it at the same steps.

    Returns whether the run went back, which forgets the steps after the one that it went back at:
    the state is as it is after that one. Raises what `_go_back` does.
    """
    if lag is None:
        lag = outcomes.lag
    for step in outcomes.arrived(lag):
        if is_finite(step.numbers[0], step.numbers[1]):
            run.state.bad_in_row = 0
            continue
        _skipped(run, outcomes, step)
        if run.state.bad_in_row == BAD_STEPS:
            _go_back(run, step.step)
            outcomes.awaited.clear()
            return True
    return False


def _skipped(run: Run, outcomes: Outcomes, skipped: Awaited) -> None:
    """Count a step whose loss or gradient is not finite, and write its batch down, for replay."""
    run.state.skipped += 1
    run.state.bad_in_row += 1

    # The whole batch, of which each rank has a share
    indices = []
    for share in from_every_rank(skipped.indices.tolist()):
        indices += share
    loss, norm = outcomes.loss, outcomes.norm
    run.log("skipped", skipped.step, loss=loss, norm=norm, indices=indices)
    run.log.say(
        f"step {skipped.step}: loss {loss}, gradient norm {norm}: skipped; its batch is listed in "
        f"{run.log.path}"
    )


def _go_back(run: Run, step_now: int) -> None:
    """Load the newest good checkpoint, and go on after this step with its weights: the next batches
    are new ones, for the same ones would lead to the same place.

    Raises FloatingPointError if the run has gone back before, or no checkpoint is good.
    """
    state = run.state
    advice = (
        f"lower `optim.lr` (it is {run.recipe.optim.lr:g}), lengthen `optim.warmup`, or use "
        "`precision='float32'`"
    )
    if state.rollbacks:
        raise Diverged(
            f"{BAD_STEPS} steps in a row were not finite at step {step_now}, after going back "
            f"once already; {advice}"
        )

    skipped = state.skipped
    checkpoint = _load_good_checkpoint(run)
    if checkpoint is None:
        raise Diverged(f"{BAD_STEPS} steps in a row were not finite and no checkpoint is; {advice}")
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
        except VitkitError as error:
            run.log.say(f"{error}; trying the one before it")
            continue
        local = [local_tensor(tensor) for tensor in run.state.tensors().values()]
        finite = all(tensor.isfinite().all() for tensor in local)
        if not any_rank(not finite):
            return checkpoint
    return None
