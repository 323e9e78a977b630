"""Everything that a run must remember, and how it comes to the disk and back.

One process writes its tensors while it waits. Several write through torch.distributed.checkpoint:
each copies its shards, and a thread writes them while training goes on; any number of processes
reads what any other number wrote.
"""

import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from vitkit.objectives.objective import Learner
from vitkit.system.ranks import any_rank, from_rank_0, gathered, on_rank_0, world
from vitkit.system.watchdog import watchdog
from vitkit.train.checkpoints import COUNTERS, checksum, complete, new_folder, prune, verify

WHOLE = "state.safetensors"  # the file of a run of one process


@dataclass
class State:
    """Learner, optimiser, Polyak average (None when off) and the counters of a run. Only the loop
    changes it."""

    learner: Learner
    """The model under the name `model`, with what its objective adds."""
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor] | None = None
    step: int = 0
    """Finished steps, the skipped ones among them."""
    skipped: int = 0
    """Steps whose loss or gradient was not finite."""
    bad_in_row: int = 0
    """How many of the latest steps were skipped."""
    rollbacks: int = 0
    """How often the run went back to an earlier checkpoint's weights."""
    saved_step: int = -1
    """The step whose checkpoint this process wrote or read, so that it is known to be intact."""
    damaged: set[str] = field(default_factory=set)
    """Names of checkpoints that could not be read."""
    writing: Future | None = None
    """The checkpoint that a thread is writing."""
    group: dist.ProcessGroup | None = None
    """Where such threads of all ranks meet, apart from the training's own exchange."""

    @property
    def device(self) -> torch.device:
        """Where the learner's parameters are."""
        return next(self.learner.parameters()).device

    def update_average(self, factor: float) -> None:
        """average <- factor * average + (1 - factor) * weights. The factor grows to its value over
        the first steps as (1 + step) / (10 + step), so that the initial weights do not linger; the
        paper gives the factor only."""
        factor = min(factor, (1 + self.step) / (10 + self.step))
        weights = trained(self.learner)
        averages = list(self.average.values())
        torch._foreach_lerp_(averages, [weights[name] for name in self.average], 1 - factor)

    @contextmanager
    def averaged(self) -> Iterator[Learner]:
        """The learner with the averaged weights in it, if there is an average; the trained ones
        come back after."""
        self._swap()
        try:
            yield self.learner
        finally:
            self._swap()

    @contextmanager
    def deployed(self) -> Iterator[Learner]:
        """The learner with the model that will be saved: averaged, as its objective deploys it, its
        modules whole on every rank so that each can be called. What is trained comes back after."""
        with self.averaged() as learner, learner.deployed(), gathered(learner):
            yield learner

    def _swap(self) -> None:
        """Exchange weights and averages: their values, not the tensors, for FSDP knows where its
        shards lie."""
        weights = trained(self.learner)
        for name, average in (self.average or {}).items():
            weight = weights[name].clone()
            weights[name].copy_(average)
            average.copy_(weight)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, views of the live ones: weights, average, and the optimiser's by
        parameter."""
        named = self._model_tensors()
        for name, parameter in self.learner.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if value is not None:
                    named[f"optimizer.{key}.{name}"] = value
        return named

    def _model_tensors(self) -> dict[str, Tensor]:
        """Weights and average: the tensors that are there before the first step."""
        named = {f"learner.{name}": t for name, t in self.learner.state_dict().items()}
        return named | {f"average.{name}": t for name, t in (self.average or {}).items()}

    def save(self, run_dir: Path, keep: int, scheduled: bool = True) -> None:
        """Write a checkpoint, then move the pointer to it. On any failure, a full disk too, what
        was there still is.

        Several ranks return when their shards are copied; `wait` waits until all is written, and
        raises what failed. scheduled: the recipe asks for it, rather than an interruption.
        """
        self.wait()
        if self.saved_step == self.step:
            return
        facts = {name: getattr(self, name) for name in COUNTERS} | {"scheduled": scheduled}
        with _blamed(run_dir, self.step):
            folder = from_rank_0(lambda: new_folder(run_dir, self.step))
        writing = Writing(folder, facts, keep, set(self.damaged))
        if world().world_size == 1:
            _write_whole(self.tensors(), writing)
        else:
            self._write_in_a_thread(writing)
        self.saved_step = self.step

    def _write_in_a_thread(self, writing: "Writing") -> None:
        """Copy this rank's shards, at once, so that training may go on with the originals; then a
        thread writes them."""
        if self.group is None:
            self.group = dist.new_group(backend="gloo")
        plain = StagingOptions(False, False, False, False)
        copies = DefaultStager(plain).stage(self.tensors())
        thread = ThreadPoolExecutor(1)
        self.writing = thread.submit(_write_shards, copies, self.group, writing)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until what was saved is on the disk. Raises OSError if it could not be written."""
        if self.writing is not None:
            writing = self.writing
            self.writing = None
            watchdog.pause()
            writing.result()

    def load(self, checkpoint: Path) -> None:
        """Become what the checkpoint holds. Raises ValueError if it is damaged or of another model;
        the state is then as it was."""
        self.wait()
        facts = self._verified(checkpoint)

        # What is there: weights and average must be those of this learner
        reader = dcp.HuggingFaceStorageReader(str(checkpoint))
        stored = reader.read_metadata().state_dict_metadata
        of_optimizer = sorted(name for name in stored if name.startswith("optimizer."))
        shapes = {name: stored[name].size for name in stored.keys() - set(of_optimizer)}
        tensors = self._model_tensors()
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise ValueError(f"{checkpoint} holds another model than this recipe's")

        # Room for the optimiser's
        parameters = dict(self.learner.named_parameters())
        self.optimizer.state.clear()
        for name in of_optimizer:
            _, key, path = name.split(".", 2)
            value = _room(parameters[path].detach(), key, stored[name].size)
            self.optimizer.state[parameters[path]][key] = value
            tensors[name] = value

        with warnings.catch_warnings():
            # in a run of one process it is
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.load(tensors, storage_reader=reader, no_dist=world().world_size == 1)
        for name in COUNTERS:
            setattr(self, name, facts[name])
        self.saved_step = self.step

    def _verified(self, checkpoint: Path) -> dict:
        """The facts of a checkpoint. Raises ValueError on every rank if one of them finds it
        damaged."""
        facts = {}
        problem = None
        try:
            facts = verify(checkpoint, world())
        except ValueError as error:
            problem = error
        if any_rank(problem is not None):
            self.damaged.add(checkpoint.name)
            raise problem or ValueError(f"checkpoint {checkpoint} is damaged: another rank says so")
        return facts


def trained(learner: nn.Module) -> dict[str, Tensor]:
    """The parameters that the optimiser changes, by name, without their graph."""
    return {name: p.detach() for name, p in learner.named_parameters() if p.requires_grad}


def _room(parameter: Tensor, key: str, shape: torch.Size) -> Tensor:
    """Zeros for a tensor of the optimiser: sharded as its parameter is, but for Adam's count, whole
    on every rank."""
    if shape == parameter.shape and key != "step":
        return torch.zeros_like(parameter)
    return torch.zeros(shape, device=parameter.device)


class Writing(NamedTuple):
    """A checkpoint that is being written."""

    folder: Path
    """Where its files go until it is complete."""
    facts: dict
    """What its state.json says."""
    keep: int
    """How many checkpoints stay."""
    damaged: set[str]
    """Names of those that do not count."""

    @property
    def run_dir(self) -> Path:
        """The directory of the run."""
        return self.folder.parent.parent


def _write_whole(tensors: dict[str, Tensor], writing: Writing) -> None:
    """One process: one file. Raises OSError."""
    on_cpu = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    path = writing.folder / WHOLE
    with _blamed(writing.run_dir, writing.facts["step"], writing.folder):
        try:
            save_file(on_cpu, path)
        except SafetensorError as error:  # how it reports what the system refused
            raise OSError(str(error)) from error
        complete(writing.folder, writing.facts, {WHOLE: checksum(path)})
    prune(writing.run_dir, writing.keep, writing.damaged)


def _write_shards(tensors: dict, group: dist.ProcessGroup, writing: Writing) -> None:
    """Several: a file of each rank's shards. When all are there, rank 0 makes them a checkpoint.
    Raises OSError."""
    rank, world_size = world()
    folder = writing.folder
    with _blamed(writing.run_dir, writing.facts["step"], folder):
        writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dcp.save(tensors, storage_writer=writer, process_group=group)
        files = sorted(folder.glob("*.safetensors"))[rank::world_size]
        own = {path.name: checksum(path) for path in files}
        every: list = [None] * world_size
        dist.all_gather_object(every, own, group)
        if on_rank_0():
            checksums = {name: value for of_rank in every for name, value in of_rank.items()}
            complete(folder, writing.facts, checksums)
            prune(writing.run_dir, writing.keep, writing.damaged)


@contextmanager
def _blamed(run_dir: Path, step: int, folder: Path | None = None) -> Iterator[None]:
    """What could not be written whole goes, and frees its room. Raises OSError, saying so."""
    try:
        yield
    except (OSError, dcp.CheckpointException) as error:
        if folder is not None and on_rank_0():
            shutil.rmtree(folder, ignore_errors=True)
        raise OSError(
            f"could not write a checkpoint at step {step} to {run_dir / 'checkpoints'} ({error}); "
            "the earlier ones are "
            f"untouched: make room and run the same command again"
        ) from error
