"""Everything that a run must remember, and how it comes to the disk and back.

One process writes its tensors while it waits. Several write through torch.distributed.checkpoint: each copies its shards,
and a thread writes them while training goes on; any number of processes reads what any other number wrote.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from vitkit.system.ranks import any_rank, from_rank_0, gathered, on_rank_0, world
from vitkit.system.watchdog import watchdog
from vitkit.train.checkpoints import COUNTERS, begin, checkpoints, digest, finish, prune, verify


@dataclass
class State:
    """Learner, optimiser, Polyak average (None when off) and the counters of a run. Only the loop changes it."""

    learner: nn.Module
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
    kept: int = -1
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
        """average <- factor * average + (1 - factor) * weights. The factor grows to its value over the first steps as
        (1 + step) / (10 + step), so that the initial weights do not linger; the paper gives the factor only."""
        factor = min(factor, (1 + self.step) / (10 + self.step))
        weights = trained(self.learner)
        torch._foreach_lerp_(
            list(self.average.values()), [weights[name] for name in self.average], 1 - factor
        )

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The learner with the averaged weights in it, where there is an average; the trained ones come back after."""
        self._swap()
        try:
            yield self.learner
        finally:
            self._swap()

    @contextmanager
    def deployed(self) -> Iterator[nn.Module]:
        """The learner with the model that will be saved: averaged, as its objective deploys it, its modules whole on every
        rank so that each can be called. What is trained comes back after."""
        with self.averaged() as learner, learner.deployed(), gathered(learner):
            yield learner

    def _swap(self) -> None:
        weights = trained(self.learner)
        for name, average in (
            self.average or {}
        ).items():  # values, not tensors: FSDP knows where its shards lie
            kept = weights[name].clone()
            weights[name].copy_(average)
            average.copy_(kept)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, views of the live ones: weights, average, and the optimiser's by parameter."""
        named = self._lasting()
        for name, parameter in self.learner.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if value is not None:
                    named[f"optimizer.{key}.{name}"] = value
        return named

    def _lasting(self) -> dict[str, Tensor]:
        """Those that are there before the first step."""
        named = {f"learner.{name}": t for name, t in self.learner.state_dict().items()}
        return named | {f"average.{name}": t for name, t in (self.average or {}).items()}

    def save(self, workdir: Path, keep: int, scheduled: bool = True) -> None:
        """Write a checkpoint, then move the pointer to it. On any failure, a full disk too, what was there still is.

        Several ranks return when their shards are copied; `settle` waits until all is written, and raises what failed.
        scheduled: the recipe asks for it, rather than an interruption.
        """
        self.settle()
        if self.kept == self.step:
            return
        facts = {name: getattr(self, name) for name in COUNTERS} | {"scheduled": scheduled}
        with _complaining(workdir, self.step):
            new = from_rank_0(lambda: begin(workdir, self.step))
        after = (new, facts, keep, set(self.damaged))
        if world().ranks == 1:
            _write_whole(self.tensors(), *after)
        else:
            self.group = self.group or dist.new_group(backend="gloo")
            plain = StagingOptions(
                False, False, False, False
            )  # a copy, at once: training goes on with the originals
            copies, thread = DefaultStager(plain).stage(self.tensors()), ThreadPoolExecutor(1)
            self.writing = thread.submit(_write_shards, copies, self.group, *after)
            thread.shutdown(wait=False)
        self.kept = self.step

    def settle(self) -> None:
        """Wait until what was saved is on the disk. Raises OSError where it could not be written."""
        if self.writing is not None:
            writing, self.writing = self.writing, None
            watchdog.pause()
            writing.result()

    def load(self, checkpoint: Path) -> None:
        """Become what the checkpoint holds. Raises ValueError when it is damaged or of another model; the state is then
        as it was."""
        self.settle()
        try:
            facts, problem = verify(checkpoint, world()), None
        except ValueError as error:
            facts, problem = {}, error
        if any_rank(problem is not None):
            self.damaged.add(checkpoint.name)
            raise problem or ValueError(f"checkpoint {checkpoint} is damaged: another rank says so")
        reader = dcp.HuggingFaceStorageReader(str(checkpoint))
        stored = reader.read_metadata().state_dict_metadata
        tensors, parameters = self._lasting(), dict(self.learner.named_parameters())
        found = {
            name: facts.size for name, facts in stored.items() if not name.startswith("optimizer.")
        }
        if {name: t.shape for name, t in tensors.items()} != found:
            raise ValueError(f"{checkpoint} holds another model than this recipe's")
        self.optimizer.state.clear()
        for name in sorted(stored.keys() - found.keys()):
            _, key, of = name.split(".", 2)
            parameter = parameters[of].detach()
            like = (
                stored[name].size == parameter.shape and key != "step"
            )  # else Adam's count, whole on every rank
            value = (
                torch.zeros_like(parameter)
                if like
                else torch.zeros(stored[name].size, device=parameter.device)
            )
            self.optimizer.state[parameters[of]][key] = tensors[name] = value
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "torch.distributed is disabled"
            )  # in a run of one process it is
            dcp.load(tensors, storage_reader=reader, no_dist=world().ranks == 1)
        for name in COUNTERS:
            setattr(self, name, facts[name])
        self.kept = self.step


def trained(learner: nn.Module) -> dict[str, Tensor]:
    """The parameters that the optimiser changes, by name, without their graph."""
    return {name: p.detach() for name, p in learner.named_parameters() if p.requires_grad}


def start(workdir: Path, state: State, say: Callable[[str], None]) -> None:
    """Continue at the run's newest intact checkpoint, a damaged one being said; where there is none the state is the
    beginning. Raises ValueError when all are damaged."""
    found = from_rank_0(lambda: checkpoints(workdir))
    for checkpoint in found:
        try:
            state.load(checkpoint)
        except ValueError as error:
            say(f"{error}; trying the one before it")
        else:
            return
    if found:
        raise ValueError(
            f"every checkpoint in {workdir / 'checkpoints'} is damaged; remove {workdir} to start over"
        )


def _write_whole(
    tensors: dict[str, Tensor], new: Path, facts: dict, keep: int, damaged: set[str]
) -> None:
    """One process: one file."""
    workdir = new.parent.parent
    with _complaining(workdir, facts["step"], new):
        try:
            save_file(
                {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
                new / "state.safetensors",
            )
        except (
            SafetensorError
        ) as error:  # how it reports what the system refused, a full disk among others
            raise OSError(str(error)) from error
        finish(new, facts, {"state.safetensors": digest(new / "state.safetensors")})
    prune(workdir, keep, damaged)


def _write_shards(
    tensors: dict, group: dist.ProcessGroup, new: Path, facts: dict, keep: int, damaged: set[str]
) -> None:
    """Several: a file of each rank's shards. When all are there, rank 0 makes them a checkpoint."""
    workdir, (rank, ranks) = new.parent.parent, world()
    with _complaining(workdir, facts["step"], new):
        writer = dcp.HuggingFaceStorageWriter(str(new), save_distributed=True)
        dcp.save(tensors, storage_writer=writer, process_group=group)
        sums: list = [None] * ranks
        mine = {path.name: digest(path) for path in sorted(new.glob("*.safetensors"))[rank::ranks]}
        dist.all_gather_object(sums, mine, group)
        if on_rank_0():
            finish(new, facts, {name: sum for some in sums for name, sum in some.items()})
            prune(workdir, keep, damaged)


@contextmanager
def _complaining(workdir: Path, step: int, new: Path | None = None) -> Iterator[None]:
    """What could not be written whole goes, and frees its room. Raises OSError, saying so."""
    try:
        yield
    except (OSError, dcp.CheckpointException) as error:
        if new is not None and on_rank_0():
            shutil.rmtree(new, ignore_errors=True)
        raise OSError(
            f"could not write a checkpoint at step {step} to {workdir / 'checkpoints'} ({error}); the earlier ones are "
            f"untouched: make room and run the same command again"
        ) from error
