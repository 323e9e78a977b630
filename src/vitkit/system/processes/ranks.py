"""The processes of one run and their communication.

torchrun starts a run of several processes, its ranks, each with its own device. `process_group()` connects
them: FSDP2 shards the model, each rank gets its share of a batch, and sums are over all ranks. In a run of
one process every function here does nothing or returns its argument. Only this file, the watchdog and
training/state/state.py use torch.distributed.
"""

import itertools
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import TypeIs

from vitkit.system.errors import BadSettings, Interrupted, PeerFailed, RankLost
from vitkit.system.machine import Precision, pick_device
from vitkit.system.processes.watchdog import PATIENCE, watchdog

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class World(NamedTuple):
    """The rank of this process, and the number of processes of the run."""

    rank: int
    world_size: int


def world() -> World:
    """The rank of this process and the number of processes: World(0, 1) for a single one."""
    if not dist.is_initialized():
        return World(rank=0, world_size=1)
    return World(dist.get_rank(), dist.get_world_size())


def on_rank_0() -> bool:
    """Whether this process prints and writes."""
    return world().rank == 0


_last_rank = 0  # in the latest process group of this process


def was_rank_0() -> bool:
    """Whether this process is rank 0, or was it in its last process group: results are printed afterwards."""
    if dist.is_initialized():
        return on_rank_0()
    return _last_rank == 0


@contextmanager
def process_group(device: str = "auto", patience: float = PATIENCE) -> Iterator[torch.device]:
    """A context in which this process belongs to the process group of its run; yields its device.

    A single process, or one that is already in a process group, only gets its device.

    An error is raised on the rank that fails first, and becomes a PeerFailed on the others. RankLost is
    raised if a rank dies. If one hangs for `patience` seconds, the others report it and exit with status 1.
    """
    if not 0 < patience < math.inf:
        raise BadSettings(f"`patience` is {patience:g}; it is a number of seconds above 0")
    own_device = pick_device(device)
    if own_device.type == "cuda":
        torch.cuda.set_device(own_device.index or 0)  # NCCL and new tensors use the current device
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield own_device
        return
    if own_device.type == "cuda" and ":" in device:
        raise BadSettings(
            f"{device} is one GPU, and every process of torchrun needs its own; say `device='cuda'`"
        )

    # All ranks connect to a store. Collective operations time out later than the watchdog, because
    # the watchdog can name missing ranks.
    timeout = timedelta(seconds=2 * patience + 30)
    store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=timeout)))
    store = dist.PrefixStore(_session(store, rank, world_size), store)
    watchdog.begin(store, rank, world_size, patience)
    backend = "gloo"
    if own_device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"

    # The run, and the choice of the rank that reports its failure
    try:
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timeout
        )
        global _last_rank
        _last_rank = rank
        yield own_device
    except Interrupted:  # every rank was stopped, and none has failed
        raise
    except Exception as error:  # for every error, the other ranks end too
        if not watchdog.first_to_report():
            raise PeerFailed(str(error)) from error
        if any(word in str(error) for word in ("gloo", "NCCL", "Connection closed")):
            # The backends' own errors: the cause is on another rank
            raise RankLost(
                f"rank {rank} lost contact with another one, which died or cannot be reached; "
                "torchrun's own report says which. The same command continues from the last "
                f"checkpoint ({str(error).splitlines()[0]})"
            ) from error
        raise
    finally:
        watchdog.end()
        if dist.is_initialized():
            dist.destroy_process_group()


def _session(store: dist.Store, rank: int, world_size: int) -> str:
    """A name that all ranks of this start share, different from those of other starts: a prefix for their
    keys.

    torchrun keeps its store when it restarts the ranks of a run. Values that ranks of an earlier start left
    there, above all their addresses, must not be used again. So rank 0 creates the name and sends it to all
    announced ranks, repeatedly until every rank has confirmed it. Ranks of an earlier start never confirm.
    """
    rank_id = uuid.uuid4().hex  # different from those of earlier starts
    if rank > 0:
        store.set(f"vitkit/announced/{rank}", rank_id)
        session = store.get(f"vitkit/session_for/{rank_id}").decode()  # waits until it is set
        store.set(f"vitkit/confirmed/{session}/{rank}", "")
        return session

    session = rank_id
    unconfirmed = set(range(1, world_size))
    patience = store.timeout  # type: ignore[attr-defined]  # missing from PyTorch's stub
    deadline = time.monotonic() + patience.total_seconds()
    while unconfirmed:
        for other in unconfirmed:
            if store.check([f"vitkit/announced/{other}"]):
                other_id = store.get(f"vitkit/announced/{other}").decode()
                store.set(f"vitkit/session_for/{other_id}", session)
        if time.monotonic() > deadline:
            raise RankLost(f"rank {min(unconfirmed)} never came; look at its machine's log")
        time.sleep(0.02)
        for other in list(unconfirmed):
            if store.check([f"vitkit/confirmed/{session}/{other}"]):
                unconfirmed.remove(other)
    return session


def shard(
    learner: AnyModule, blocks: Iterable[nn.Module], precision: Precision, group: int = 0
) -> AnyModule:
    """A learner, that is, a model and its objective, with its parameters sharded by FSDP2: among all ranks, or
    among each `group` of consecutive ranks, so that each group has the whole learner (HSDP).

    The parameters of each of `blocks` are gathered while it runs; those outside of them for a whole
    forward and backward pass. Gradients are summed over ranks, in float32. In a run of one process
    this returns the learner unchanged.

    Raises VitkitError for BatchNorm, whose statistics would differ between ranks, and if the number of ranks
    is not a multiple of the group.
    """
    if not dist.is_initialized():
        return learner
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in learner.modules()):
        raise BadSettings(
            "BatchNorm knows only its own rank's images; several ranks need GroupNorm (norm group)"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    # Parameters are gathered in this precision. Shards and activations stay float32.
    gathered_dtype = None
    if precision == "bfloat16":
        gathered_dtype = torch.bfloat16
    policy = MixedPrecisionPolicy(
        param_dtype=gathered_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    device = next(learner.parameters()).device
    world_size = world().world_size
    shape: tuple[int, ...] = (world_size,)
    names: tuple[str, ...] = ("shards",)
    if 0 < group < world_size:
        if world_size % group:
            raise BadSettings(
                f"{world_size} processes are not whole groups of {group}; choose a `shard_group` "
                "that divides them, or 0, which is one group"
            )
        shape = (world_size // group, group)
        names = ("replicas", "shards")
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    # First the blocks; then the learner gets the parameters that are in none of them
    modules: list[nn.Module] = [*blocks, learner]
    for module in modules:
        fully_shard(module, mesh=mesh, mp_policy=policy)

    # FSDP averages gradients over ranks by default, but our losses are already weighted by examples
    for module in learner.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    # An empty method. As it is registered, a call makes FSDP gather the parameters outside of the
    # blocks: see `gathered`
    learner.gather = lambda: None  # type: ignore[assignment]
    register_fsdp_forward_method(learner, "gather")
    return learner


def sum_gradients(learner: nn.Module, now: bool) -> None:
    """Set whether the next backward pass sums gradients over the ranks. If not, each rank accumulates its own
    unsharded gradients until a pass that does."""
    if world().world_size > 1:
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(learner, FSDPModule)  # because of `shard`
        learner.set_requires_gradient_sync(now)


@contextmanager
def gathered(learner: nn.Module) -> Iterator[nn.Module]:
    """A context in which the learner's parameters outside of its blocks are unsharded, so that each of its
    modules can be called, not only its forward."""
    if world().world_size == 1:
        yield learner
        return
    from torch.distributed.fsdp import FSDPModule

    assert isinstance(learner, FSDPModule)  # because of `shard`
    learner.gather()  # type: ignore[operator]
    try:
        yield learner
    finally:
        learner.reshard()


def _is_sharded(tensor: Tensor) -> "TypeIs[DTensor]":
    """Whether each rank has only a part of a tensor. Checks an attribute, because importing the class is slow."""
    return hasattr(tensor, "placements")


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; any other tensor unchanged. All ranks must call this together."""
    if _is_sharded(tensor):
        return tensor.full_tensor()
    return tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor unchanged."""
    if _is_sharded(tensor):
        return tensor.to_local()
    return tensor


class LocalPart(NamedTuple):
    """This rank's part of a tensor."""

    values: Tensor
    """The values of the part, detached, not copied."""
    offsets: tuple[int, ...]
    """The position of the part in the whole tensor: an index for each dimension."""
    is_first: bool
    """Whether no lower rank has the same part."""


def part_of(tensor: Tensor) -> LocalPart:
    """This rank's part of a tensor: its shard, or the whole tensor if it is not sharded."""
    tensor = tensor.detach()
    if not _is_sharded(tensor):
        return LocalPart(tensor, (0,) * tensor.ndim, on_rank_0())
    from torch.distributed.tensor import Shard

    # A sharded dimension is cut as by torch.chunk: the last ranks may have less, or nothing
    offsets = [0] * tensor.ndim
    shape = list(tensor.shape)
    is_first = True
    mesh = tensor.device_mesh
    coordinates = mesh.get_coordinate()
    assert coordinates is not None  # the mesh has every rank
    for placement, ranks, coordinate in zip(
        tensor.placements, mesh.shape, coordinates, strict=True
    ):
        if placement.is_replicate():
            is_first = is_first and coordinate == 0
            continue
        assert isinstance(placement, Shard)
        size = shape[placement.dim]
        size_of_most = -(-size // ranks)
        start = min(size_of_most * coordinate, size)
        offsets[placement.dim] += start
        shape[placement.dim] = min(size_of_most, size - start)
    values = tensor.to_local()
    assert list(values.shape) == shape, (values.shape, shape)
    return LocalPart(values, tuple(offsets), is_first)


def replicas_of(tensor: Tensor) -> int:
    """The number of ranks with the same part of a sharded tensor; 1 for other tensors."""
    count = 1
    if _is_sharded(tensor):
        for placement, ranks in zip(tensor.placements, tensor.device_mesh.shape, strict=True):
            if placement.is_replicate():
                count *= ranks
    return count


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Add the ranks' tensors in place and return the tensor."""
    if world().world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank; all ranks get the same result."""
    return bool(sum_over_ranks(torch.tensor(int(flag))))


def from_every_rank(value: T) -> list[T]:
    """The ranks' values, in order of rank. For small values that can be pickled."""
    if world().world_size == 1:
        return [value]
    values: list = [None] * world().world_size
    dist.all_gather_object(values, value)
    return values


WAITED = "waited"  # prefix of the keys by which rank 0 says that long work is done
BETWEEN_LOOKS = 0.2  # seconds between two looks at the store
_long_works = itertools.count()  # of this process; every rank counts alike


def long_from_rank_0(make: Callable[[], T]) -> T:
    """`from_rank_0` for work of any length. The other ranks look at the store until it is done: in a collective
    operation they would time out."""
    store = watchdog.store
    if world().world_size == 1 or store is None:
        return from_rank_0(make)
    key = f"{WAITED}/{next(_long_works)}"
    watchdog.pause()
    result: list[T] = []
    failure: Exception | None = None
    if on_rank_0():
        try:
            result.append(make())
        except Exception as error:  # raised on every rank below
            failure = error
        finally:
            store.set(key, "done")
    else:
        while not store.check([key]):
            time.sleep(BETWEEN_LOOKS)

    def done() -> T:
        if failure is not None:
            raise failure
        return result[0]

    return from_rank_0(done)


def from_rank_0(make: Callable[[], T]) -> T:
    """Call `make` only on rank 0; every rank gets its result, or raises its error."""
    if world().world_size == 1:
        return make()
    message: list[Any] = [None, None]
    if on_rank_0():
        try:
            message[0] = make()
        except Exception as error:  # raised on every rank below
            message[1] = error
    dist.broadcast_object_list(message)  # sets it on the other ranks
    result, failure = message
    if failure is not None:
        raise failure
    return result
