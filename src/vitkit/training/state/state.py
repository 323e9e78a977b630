"""The state of a run: everything that changes during training, and how checkpoints of it are written and read.

A single process writes its tensors to one file, and training waits for it. With several processes, each copies its
shards, and a thread writes the copies to a file of its own while training continues. A checkpoint can be read by
another number of processes than wrote it: tensors.py.
"""

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitkit.objectives import Learner
from vitkit.system.errors import BadRun, Unavailable, VitkitError
from vitkit.system.processes.ranks import (
    from_every_rank,
    from_rank_0,
    gathered,
    local_tensor,
    on_rank_0,
    world,
)
from vitkit.system.processes.watchdog import watchdog
from vitkit.training.state.checkpoints import (
    COUNTERS,
    check_file,
    checksum,
    complete,
    new_folder,
    prune,
    read_facts,
)
from vitkit.training.state.tensors import (
    PartsToWrite,
    Piece,
    collected,
    copied,
    copies_to_make,
    parts_to_write,
    pieces_of,
    read,
    whole_shape,
    write,
)

T = TypeVar("T")


class Writing(NamedTuple):
    """A checkpoint that is being written."""

    run_dir: Path
    """The run's directory."""
    folder: Path
    """Folder of the checkpoint's files until it is complete."""
    facts: dict
    """The values for its state.json."""
    keep: int
    """Number of scheduled checkpoints to keep."""
    damaged: set[str]
    """Names of damaged checkpoints, which do not count towards `keep`."""


@dataclass
class State:
    """The state of a run: everything that changes from step to step. Only the loop changes it."""

    learner: Learner
    """The model, as its attribute `model`, and the modules that the objective adds."""
    optimizer: torch.optim.Optimizer
    """The optimiser with its moments."""
    average: dict[str, Tensor] | None = None
    """The Polyak average of the trained weights, by their names; None if it is off."""
    record: dict = field(default_factory=dict)
    """The run's "recipe" and "data", as in recipe.json and data.json, which every checkpoint repeats."""
    step: int = 0
    """Number of finished steps, including the skipped ones."""
    skipped: int = 0
    """Number of steps whose loss or gradient was not finite."""
    bad_in_row: int = 0
    """Number of skipped steps since the last good one."""
    rollbacks: int = 0
    """Number of times that the run was rolled back to a checkpoint's weights."""
    saved_step: int = -1
    """The step whose checkpoint this process wrote or read last, which is not written again."""
    damaged: set[str] = field(default_factory=set)
    """Names of checkpoints that could not be read."""
    writing: Future | None = None
    """The checkpoint that a thread is writing; None if there is none."""
    group: dist.ProcessGroup | None = None
    """The process group of the writing threads, which cannot share that of the training."""

    @property
    def device(self) -> torch.device:
        """The device of the learner's parameters."""
        return next(self.learner.parameters()).device

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimiser changes, by name. Cached, because collecting those of a small
        model takes longer than updating them."""
        return {name: p for name, p in self.learner.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update_average(self, factor: float, bad: Tensor | None = None) -> None:
        """Update the Polyak average, if there is one: average <- factor * average + (1 - factor) * weights
        (Section 4.1 gives the factor).

        bad: float32 () on the device: if it is 1, nothing changes; None is 0.
        """
        if self.average is None:
            return
        # The factor increases over the first steps, so that the initial weights are soon forgotten, as in
        # TensorFlow's ExponentialMovingAverage with num_updates
        factor = min(factor, (1 + self.step) / (10 + self.step))
        averages = [local_tensor(average) for average in self.average.values()]
        weights = [local_tensor(self.parameters[name]) for name in self.average]
        if bad is None:
            torch._foreach_lerp_(averages, weights, 1 - factor)
            return
        share = (1 - factor) * (1 - bad)
        torch._foreach_lerp_(averages, weights, [share] * len(averages))

    @contextmanager
    def averaged(self) -> Iterator[Learner]:
        """Context with the learner's averaged weights, if there is an average. Afterwards it has the trained
        weights again."""
        self._swap_average()
        try:
            yield self.learner
        finally:
            self._swap_average()

    @contextmanager
    def deployed(self) -> Iterator[Learner]:
        """Context with the learner's model as it would be saved now. Afterwards its previous state is restored.

        In this order, the averaged weights are swapped in, the objective replaces them by those that it deploys
        (Learner.deployed), and every rank gathers whole modules, so that they can be called.
        """
        with self.averaged() as learner, learner.deployed(), gathered(learner):
            yield learner

    def _swap_average(self) -> None:
        """Exchange the values of weights and averages. The tensor objects stay, because FSDP keeps references to
        its shards."""
        weights = trained(self.learner)
        for name, average in (self.average or {}).items():
            weight = weights[name].clone()
            weights[name].copy_(average)
            average.copy_(weight)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of a checkpoint by name, not copied: weights, average, and the optimiser's state of each
        parameter ("optimizer.exp_avg.model.norm.weight")."""
        named = self._model_tensors()
        for name, parameter in self.learner.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if value is not None:
                    named[f"optimizer.{key}.{name}"] = value
        return named

    def _model_tensors(self) -> dict[str, Tensor]:
        """Weights and average by name, which exist before the first step, unlike the optimiser's state."""
        named = {f"learner.{name}": tensor for name, tensor in self.learner.state_dict().items()}
        for name, tensor in (self.average or {}).items():
            named[f"average.{name}"] = tensor
        return named

    def save(self, run_dir: Path, keep: int, scheduled: bool = True) -> None:
        """Write a checkpoint, then move the pointer to it. If that fails, such as on a full disk, the earlier
        checkpoints stay intact.

        With several ranks it returns when the shards are copied; `wait` waits until they are written, and
        raises errors.

        keep: number of scheduled checkpoints to keep.
        scheduled: False for a checkpoint of an interruption.
        """
        self.wait()
        if self.saved_step == self.step:
            return

        # Collect the values to write, and create the folder
        facts = {name: getattr(self, name) for name in COUNTERS}
        facts["scheduled"] = scheduled
        facts |= self.record
        with _explaining_failure(run_dir, self.step):
            folder = from_rank_0(lambda: new_folder(run_dir, self.step))
        writing = Writing(run_dir, folder, facts, keep, set(self.damaged))
        parts = parts_to_write(self.tensors())
        if world().world_size == 1:
            _write(parts, None, writing)
        else:
            # Copy this rank's shards, so that training can continue, and let a thread write the copies
            if self.group is None:
                group = dist.new_group(backend="gloo")
                assert isinstance(group, dist.ProcessGroup), "every rank is in the group"
                self.group = group
            thread = ThreadPoolExecutor(1)
            self.writing = thread.submit(_write, copied(parts), self.group, writing)
            thread.shutdown(wait=False)
        self.saved_step = self.step

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk. Raises OSError if it could not be
        written."""
        if self.writing is not None:
            writing = self.writing
            self.writing = None
            watchdog.pause()  # a slow disk must not end the run
            writing.result()

    def load(self, checkpoint: Path) -> None:
        """Read a checkpoint into this state.

        Raises VitkitError if it is damaged, and adds it to `damaged`, or if it is of another model. The rest of
        the state does not change then.
        """
        self.wait()
        facts, pieces = self._opened(checkpoint)

        # The names and shapes of its weights and average must be those of this learner
        of_optimizer = sorted(name for name in pieces if name.startswith("optimizer."))
        stored = {name: whole_shape(of_tensor) for name, of_tensor in pieces.items()}
        tensors = self._model_tensors()
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != {name: stored[name] for name in stored.keys() - set(of_optimizer)}:
            raise BadRun(f"{checkpoint} holds another model than this recipe's")

        # The optimiser creates its tensors in its first step, so create them here
        parameters = dict(self.learner.named_parameters())
        moments: dict[Tensor, dict[str, Tensor]] = {}
        for name in of_optimizer:
            _, key, path = name.split(".", 2)  # "optimizer.exp_avg.model.norm.weight"
            if path not in parameters:
                raise BadRun(f"{checkpoint} holds another model than this recipe's")
            parameter = parameters[path]
            if stored[name] == parameter.shape and key != "step":
                # Sharded in the same way as the parameter
                value = torch.zeros_like(parameter.detach())
            else:
                # Adam's step count is not sharded
                value = torch.zeros(stored[name], device=parameter.device)
            moments.setdefault(parameter, {})[key] = value
            tensors[name] = value

        # Find the parts of the files that this rank needs
        copies = {}
        problem = ""
        try:
            copies = copies_to_make(tensors, pieces)
        except VitkitError as error:
            problem = str(error)
        self._refuse_damaged(checkpoint, from_every_rank(problem))

        # Read them in place
        read(checkpoint, tensors, copies)
        self.optimizer.state.clear()
        self.optimizer.state.update(moments)
        for name in COUNTERS:
            setattr(self, name, facts[name])
        self.saved_step = self.step

    def _opened(self, checkpoint: Path) -> tuple[dict, dict[str, list[Piece]]]:
        """The values of a checkpoint's state.json, and the pieces of its tensors by name. Each file is checked,
        and its header read, by one rank.

        Raises VitkitError on every rank if one of them finds damage.
        """
        try:
            facts = from_rank_0(lambda: read_facts(checkpoint))
        except VitkitError:
            self.damaged.add(checkpoint.name)
            raise

        # Read this rank's share of the files
        rank, world_size = world()
        own_pieces = []
        problem = ""
        try:
            for name in sorted(facts["sha256"])[rank::world_size]:
                file = checkpoint / Path(name).name  # stays within the folder
                check_file(file, facts["sha256"][name])
                own_pieces.append(pieces_of(file))
        except (VitkitError, OSError) as error:
            problem = str(error)

        # Exchange them with all ranks
        of_ranks = from_every_rank((problem, own_pieces))
        self._refuse_damaged(checkpoint, [problem for problem, _ in of_ranks])
        return facts, collected(pieces for _, pieces in of_ranks)

    def _refuse_damaged(self, checkpoint: Path, problems: list[str]) -> None:
        """Raises VitkitError if any rank has a problem with a checkpoint, and adds it to `damaged`. problems: a
        message of each rank, empty for none."""
        problems = [problem for problem in problems if problem]
        if not problems:
            return
        self.damaged.add(checkpoint.name)
        if str(checkpoint) in problems[0]:
            raise BadRun(problems[0])
        raise BadRun(f"checkpoint {checkpoint} is damaged: {problems[0]}")


def trained(learner: nn.Module) -> dict[str, Tensor]:
    """The parameters that the optimiser changes, by name, detached."""
    return {name: p.detach() for name, p in learner.named_parameters() if p.requires_grad}


def _write(parts: PartsToWrite, group: dist.ProcessGroup | None, writing: Writing) -> None:
    """Write a checkpoint, of which each rank has its parts. group: the process group, None for a single process.
    Raises OSError on every rank if one of them cannot write."""
    folder = writing.folder
    with _explaining_failure(writing.run_dir, writing.facts["step"], folder):
        # This rank's file, and its checksum
        checksums = {}
        problem = ""
        bug = None
        try:
            path = write(folder, parts)
            if path is not None:
                checksums[path.name] = checksum(path)
        except Exception as error:  # any error must be reported: the other ranks wait for this one
            problem = str(error) or type(error).__name__
            bug = error if not isinstance(error, OSError) else None

        # When every file is on the disk, rank 0 turns the folder into a checkpoint
        for checksums_of_rank, problem_of_rank in _on_rank_0((checksums, problem), group):
            checksums |= checksums_of_rank
            problem = problem or problem_of_rank
        if on_rank_0() and not problem:
            try:
                complete(folder, writing.facts, checksums)
                prune(writing.run_dir, writing.keep, writing.damaged)
            except Exception as error:  # any error must be reported, as above
                problem = str(error) or type(error).__name__
                bug = error if not isinstance(error, OSError) else None
        problem = _of_rank_0(problem, group)
        # Not an error of the disk, such as two parameters that share their memory
        if bug is not None:
            raise bug
        if problem:
            raise Unavailable(problem)


def _on_rank_0(value: T, group: dist.ProcessGroup | None) -> list[T]:
    """The values of all ranks on rank 0, in order of rank; an empty list on the others."""
    if group is None:
        return [value]
    if not on_rank_0():
        dist.gather_object(value, group=group)
        return []
    values = [value] * world().world_size
    dist.gather_object(value, values, group=group)
    return values


def _of_rank_0(value: T, group: dist.ProcessGroup | None) -> T:
    """The value of rank 0, on every rank."""
    if group is None:
        return value
    message = [value]
    dist.broadcast_object_list(message, group=group)
    return message[0]


@contextmanager
def _explaining_failure(run_dir: Path, step: int, folder: Path | None = None) -> Iterator[None]:
    """Context for writing a checkpoint: on an OSError, removes the unfinished `folder`, which frees its space,
    and raises an OSError that says what to do."""
    try:
        yield
    except OSError as error:
        if folder is not None and on_rank_0():
            shutil.rmtree(folder, ignore_errors=True)
        raise Unavailable(
            f"could not write a checkpoint at step {step} to {run_dir / 'checkpoints'} ({error}); "
            "the earlier ones are intact: free some space and run the same command again"
        ) from error
