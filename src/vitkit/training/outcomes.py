"""Outcomes of steps, read some steps later: losses, non-finite steps, and requests to stop.

Work is queued on a GPU ahead of time. Reading a number of the current step waits for that step, and the GPU
then waits for new work. So a non-finite step is skipped on the device, and its outcome is read LAG steps
later, when it has long been computed; every rank reads the outcomes of the same steps. Before anything is
written (a point of the curve, an evaluation, a checkpoint), the outcomes of all steps are read. So the results
of a run do not depend, to the bit, on when outcomes are read.

A skipped step is counted and logged; after a few in a row the run is rolled back to earlier weights, and the
steps that followed the last of them are repeated.
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

LAG = {"cuda": 2}  # steps, by type of device; other devices compute synchronously
# Consecutive non-finite steps after which the run is rolled back to a good checkpoint
BAD_STEPS = 3


class Awaited(NamedTuple):
    """A step whose outcome has not been read."""

    step: int
    indices: Tensor
    """Indices of the examples in this rank's share of the batch."""
    numbers: Tensor
    """The step's StepOutcome on the CPU, (3,); valid once `arrived`."""
    arrived: torch.cuda.Event | None
    """Event that the GPU records after the copy; None if the numbers are on the CPU already."""


@dataclass
class Outcomes:
    """The steps whose outcomes have not been read yet, and the outcome that was read last."""

    lag: int
    """Number of steps after which an outcome is read."""
    awaited: deque[Awaited] = field(default_factory=deque)
    """The steps whose outcomes have not been read, the oldest first."""
    loss: float = 0.0
    """Loss of the last step that was read."""
    norm: float = 0.0
    """Gradient norm of the last step that was read."""
    stops: bool = False
    """Whether a rank was asked to stop."""

    @classmethod
    def on(cls, device: torch.device) -> "Outcomes":
        """The outcomes at the start of a run, or of its continuation, on a device."""
        return cls(LAG.get(device.type, 0))

    def add(self, step: int, batch: Batch, outcome: StepOutcome) -> None:
        """Add a step with this rank's share of its batch, and start copying its outcome to the CPU."""
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
        """Yields and removes the steps that are more than `lag` steps old, in order. Waits for their
        outcomes."""
        while len(self.awaited) > lag:
            oldest = self.awaited.popleft()
            if oldest.arrived is not None:
                oldest.arrived.synchronize()
            self.loss, self.norm, stops = oldest.numbers.tolist()
            self.stops = self.stops or stops > 0
            yield oldest


def look(run: Run, outcomes: Outcomes, lag: int | None = None) -> bool:
    """Read the outcomes of the steps that are more than `lag` steps old, by default `outcomes.lag`. Every
    rank calls it at the same steps.

    Returns whether the run was rolled back. If so, `state.step` is the step whose outcome caused that, and
    later steps are discarded. Raises the errors of `_go_back`.
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
    """Count a step whose loss or gradient is not finite, and log its batch, for replay."""
    run.state.skipped += 1
    run.state.bad_in_row += 1

    # Gather the whole batch from the ranks' shares
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
    """Load the newest good checkpoint, and continue after this step with its weights: with new batches,
    because the old ones would lead to the same failure.

    Raises FloatingPointError if the run was rolled back before, or no checkpoint is good.
    """
    state = run.state
    advice = (
        f"lower `optim.lr` (it is {run.recipe.optim.lr:g}), lengthen `optim.warmup`, or use "
        "`precision='float32'`"
    )
    if state.rollbacks:
        raise Diverged(
            f"{BAD_STEPS} steps in a row were not finite at step {step_now}, after one rollback "
            f"already; {advice}"
        )

    skipped = state.skipped
    checkpoint = _load_good_checkpoint(run)
    if checkpoint is None:
        raise Diverged(f"{BAD_STEPS} steps in a row were not finite and no checkpoint is; {advice}")
    run.log.say(
        f"{BAD_STEPS} steps in a row were not finite: back to the weights of step {state.step}, with "
        "new batches"
    )

    # The batches continue from here, so the counters keep their values
    state.step = step_now
    state.skipped = skipped
    state.bad_in_row = 0
    state.rollbacks = 1

    # Save, so that a run that is killed after this is not rolled back again
    run.log("rollback", state.step, checkpoint=checkpoint.name)
    state.save(run.run_dir, run.recipe.keep)


def _load_good_checkpoint(run: Run) -> Path | None:
    """Load the newest scheduled checkpoint that is intact, and finite on every rank; returns it, or None if
    there is none."""
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
