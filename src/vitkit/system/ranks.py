"""The other processes of the same run.

torchrun starts a run of several processes, its ranks, each with a device of its own.
`process_group()` makes them one run: FSDP2 shards the learner, every batch is shared out, and
counts are summed over ranks. In a run of one process all of this is the identity. With
train/state.py and the watchdog this is the only file that names torch.distributed.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitkit.system.errors import PeerFailed, RankLost
from vitkit.system.machine import Precision, pick_device
from vitkit.system.watchdog import PATIENCE, watchdog

T = TypeVar("T")


class World(NamedTuple):
    """Which of how many processes of a run this is."""

    rank: int
    world_size: int


def world() -> World:
    """This process among those of its run: World(0, 1) if it is alone."""
    if not dist.is_initialized():
        return World(rank=0, world_size=1)
    return World(dist.get_rank(), dist.get_world_size())


def on_rank_0() -> bool:
    """Whether this is the process that speaks and writes."""
    return world().rank == 0


@contextmanager
def process_group(device: str = "auto", patience: float = PATIENCE) -> Iterator[torch.device]:
    """The device of this process, within the process group of all that torchrun started.

    Alone, or inside of another process group, it is the device only. An error of several ranks is
    raised by the first to fail, in the others it becomes a PeerFailed. RankLost is raised when a rank
    dies; when one hangs for `patience` seconds, the process says which and ends with status 1.
    """
    chosen = pick_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield chosen
        return
    if chosen.type == "cuda" and ":" in device:
        raise ValueError(
            f"{device} is one GPU, and every process of torchrun needs its own; say --device cuda"
        )

    # All ranks meet in a store. The watchdog is to come before the timeout of a collective
    # operation: it knows who is missing.
    timeout = timedelta(seconds=2 * patience + 30)
    store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=timeout)))
    store = dist.PrefixStore(_session(store, rank, world_size), store)
    watchdog.begin(store, rank, world_size, patience)
    backend = "gloo"
    if chosen.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timeout
        )
        yield chosen
    except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
        if not watchdog.first_to_fail():
            raise PeerFailed(str(error)) from error
        if any(word in str(error) for word in ("gloo", "NCCL", "Connection closed")):
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
    """A name that the ranks of this start share, and no other.

    torchrun keeps its store when it starts ranks again, and what those before them left there,
    addresses above all, must not be taken for one's own. So rank 0 makes the name, and hands it to
    everyone who is there until everyone has answered: those of an earlier start never will.
    """
    own = uuid.uuid4().hex
    store.set(f"vitkit/here/{rank}", own)
    if rank > 0:
        session = store.get(f"vitkit/session/{own}").decode()  # waits until rank 0 has set it
        store.set(f"vitkit/there/{session}/{rank}", "")
        return session

    missing = set(range(1, world_size))
    limit = time.monotonic() + store.timeout.total_seconds()
    while missing:
        for other in missing:
            if store.check([f"vitkit/here/{other}"]):
                name = store.get(f"vitkit/here/{other}").decode()
                store.set(f"vitkit/session/{name}", own)
        if time.monotonic() > limit:
            raise RankLost(f"rank {min(missing)} never came; look at its machine's log")
        time.sleep(0.02)
        missing = {other for other in missing if not store.check([f"vitkit/there/{own}/{other}"])}
    return own


def shard(learner: nn.Module, blocks: Iterable[nn.Module], precision: Precision) -> nn.Module:
    """The learner with its parameters shared out among the ranks (FSDP2).

    Each of `blocks` is gathered when it runs, the rest for the whole pass. Gradients are summed over
    ranks, in float32. In a run of one process it is the learner as it was.

    Raises ValueError for BatchNorm, whose statistics would differ between ranks.
    """
    if not dist.is_initialized():
        return learner
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in learner.modules()):
        raise ValueError(
            "BatchNorm knows only its own rank's images; several ranks need GroupNorm (norm group)"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    # Parameters are gathered in this precision; the shards stay float32, as do activations.
    gathered_dtype = None
    if precision == "bfloat16":
        gathered_dtype = torch.bfloat16
    policy = MixedPrecisionPolicy(
        param_dtype=gathered_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    device = next(learner.parameters()).device
    mesh = init_device_mesh(device.type, (world().world_size,))
    for module in [*blocks, learner]:
        fully_shard(module, mesh=mesh, mp_policy=policy)

    # Losses are weighted by examples already, so gradients are summed, not averaged.
    for module in learner.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    learner.gather = lambda: None  # FSDP's hooks around it gather what is beside the blocks
    register_fsdp_forward_method(learner, "gather")
    return learner


@contextmanager
def gathered(learner: nn.Module) -> Iterator[nn.Module]:
    """The learner with the parameters beside its blocks whole, so that any of its modules can be
    called alone."""
    if world().world_size == 1:
        yield learner
        return
    learner.gather()
    try:
        yield learner
    finally:
        learner.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """A sharded tensor in one piece, on every rank, which must all ask; any other as it is."""
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor()
    return tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other as it is."""
    if hasattr(tensor, "to_local"):
        return tensor.to_local()
    return tensor


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of every rank's tensor, in place and returned."""
    if world().world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def any_rank(flag: bool) -> bool:
    """Whether it is so on any rank; every rank gets the same answer."""
    return bool(sum_over_ranks(torch.tensor(int(flag))))


def from_every_rank(value: T) -> list[T]:
    """What each rank has, in their order. Values are small and plain."""
    if world().world_size == 1:
        return [value]
    values: list = [None] * world().world_size
    dist.all_gather_object(values, value)
    return values


def from_rank_0(make: Callable[[], T]) -> T:
    """What `make` returns on rank 0, which alone calls it; its error is raised on every rank."""
    if world().world_size == 1:
        return make()
    result, failure = None, None
    if on_rank_0():
        try:
            result = make()
        except (ValueError, OSError) as error:
            failure = error
    shared = [result, failure]
    dist.broadcast_object_list(shared)
    result, failure = shared
    if failure is not None:
        raise failure
    return result
