"""The other processes of the same run.

torchrun starts a run of several processes, its ranks, each with a device of its own. `joined()` makes them one run: FSDP2
shards the learner, every batch is shared out, and what a rank finds is summed. In a run of one process all of this is the
identity. With train/state.py this is the only file that names torch.distributed.
"""

import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitkit.machine import Precision, pick_device

T = TypeVar("T")

PATIENCE = 600.0  # seconds that ranks wait for one that does not answer


class RankLost(RuntimeError):
    """A rank died, or does not answer; the message says what is known of it."""


class Echo(RuntimeError):
    """Another rank was the first to fail and says why; this one ends in silence."""


class World(NamedTuple):
    """Which of how many processes of a run this is."""

    rank: int
    ranks: int


def world() -> World:
    """This process among those of its run: (0, 1) where it is alone."""
    return World(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else World(0, 1)


def on_rank_0() -> bool:
    """Whether this is the process that speaks and writes."""
    return world().rank == 0


@contextmanager
def joined(device: str = "auto", patience: float = PATIENCE) -> Iterator[torch.device]:
    """The device of this process, within the process group of all that torchrun started; inside of another, that one.

    An error of several ranks is raised by the first to fail, in the others it becomes an Echo. RankLost is raised when
    a rank dies; when one hangs for `patience` seconds, the process says which and ends with status 1.
    """
    place = pick_device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield place
        return
    if place.type == "cuda" and ":" in device:
        raise ValueError(f"{device} is one GPU, and every process of torchrun needs its own; say --device cuda")
    waiting = timedelta(seconds=2 * patience + 30)  # the watch is to come first: it knows who is missing
    store, rank, ranks = next(iter(dist.rendezvous("env://", timeout=waiting)))
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    store = dist.PrefixStore(_session(store, rank, ranks), store)
    watch.begin(store, patience)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=waiting)
        yield place
    except (ValueError, OSError, ArithmeticError, RuntimeError) as error:
        if not watch.first_to_fail():
            raise Echo(str(error)) from error
        if any(word in str(error) for word in ("gloo", "NCCL", "Connection closed")):
            raise RankLost(
                f"rank {rank} lost contact with another one, which died or cannot be reached; torchrun's own report says "
                f"which. The same command continues from the last checkpoint ({str(error).splitlines()[0]})"
            ) from error
        raise
    finally:
        watch.end()
        if dist.is_initialized():
            dist.destroy_process_group()


def _session(store: dist.Store, rank: int, ranks: int) -> str:
    """A name that the ranks of this start share, and no other. torchrun keeps its store when it starts ranks again, and what
    those before them left there, addresses above all, must not be taken for one's own."""
    own = uuid.uuid4().hex
    store.set(f"vitkit/here/{rank}", own)
    if rank:
        session = store.get(f"vitkit/session/{own}").decode()  # waits for the answer
        store.set(f"vitkit/there/{session}/{rank}", "")
        return session
    missing, limit = set(range(1, ranks)), time.monotonic() + store.timeout.total_seconds()
    while missing := {one for one in missing if not store.check([f"vitkit/there/{own}/{one}"])}:
        for one in missing:
            if store.check([f"vitkit/here/{one}"]):  # perhaps of an earlier start: then nobody hears
                store.set(f"vitkit/session/{store.get(f'vitkit/here/{one}').decode()}", own)
        if time.monotonic() > limit:
            raise RankLost(f"rank {min(missing)} never came; look at its machine's log")
        time.sleep(0.02)
    return own


class Watch:
    """Ends this process when the ranks of a run come no further. A thread, for the process itself waits inside a kernel."""

    def __init__(self):
        self.store, self.patience, self.beats, self.since = None, PATIENCE, 0, 0.0
        self.over = threading.Event()

    def begin(self, store: dist.Store, patience: float) -> None:
        """Ranks meet in `store`; watching begins with the first beat."""
        self.store, self.patience, self.beats = store, patience, 0
        self.over.clear()

    def beat(self) -> None:
        """This rank has come further. To be called by every rank in step."""
        self.since = time.monotonic()
        self.beats += 1
        if self.beats == 1 and self.store is not None:
            threading.Thread(target=self._run, daemon=True).start()

    def rest(self) -> None:
        """This rank may take its time until its next beat: reading and writing can be slow, and say so in their own way."""
        self.since = float("inf")

    def end(self) -> None:
        """Watch no longer."""
        self.over.set()
        self.store = None

    def first_to_fail(self) -> bool:
        """Whether no other rank has asked this before."""
        try:
            return self.store.add("failed", 1) == 1
        except RuntimeError:  # the store went with its host
            return True

    def _run(self) -> None:
        while not self.over.wait(min(1.0, self.patience / 10)):
            if time.monotonic() - self.since > self.patience:
                said = [
                    f"rank {world().rank} came no further for {self.patience:g} s and cannot reach the others; look at the "
                    f"network of {socket.gethostname()}. The same command continues from the last checkpoint"
                ]
                asking = threading.Thread(target=self._ask, args=(self.store, said), daemon=True)
                asking.start()
                asking.join(3 * self._roll_call())  # what is out of reach may never answer
                if said[-1]:
                    print(f"vitkit: {said[-1]}", file=sys.stderr, flush=True)
                os._exit(1)  # whatever the main thread waits in would not let go

    def _roll_call(self) -> float:
        """Seconds that ranks are given to say that they live."""
        return max(2.0, self.patience / 10)

    def _ask(self, store: dist.Store, said: list[str]) -> None:
        """Append what a roll call says, nothing where another rank says it."""
        with suppress(RuntimeError):
            sentence = self._sentence(store)
            said.append(sentence if store.add("failed", 1) == 1 else "")

    def _sentence(self, store: dist.Store) -> str:
        """Who is missing: a roll call, answered by the threads of all processes that live."""
        rank, ranks = world()
        store.set(f"here/{rank}", str(self.beats))
        time.sleep(self._roll_call())
        here = {one: int(store.get(f"here/{one}")) for one in range(ranks) if store.check([f"here/{one}"])}
        missing = sorted(set(range(ranks)) - set(here))
        behind = [one for one, beats in here.items() if beats < max(here.values())]
        who = ", ".join(f"rank {one}" for one in missing or behind)
        what = f"{who} did not answer" if missing else f"{who} fell behind" if behind else "no rank came further"
        return (
            f"{what} for {self.patience:g} s while the others waited; look there for a stalled disk, network or machine. The "
            f"same command continues from the last checkpoint; --patience waits longer"
        )


watch = Watch()


def shard(learner: nn.Module, blocks: Iterable[nn.Module], precision: Precision) -> nn.Module:
    """The learner with its parameters shared out among the ranks (FSDP2): each of `blocks` is gathered when it runs, the
    rest for the whole pass. Gradients are summed over ranks, in float32. The identity where no ranks were joined.

    Raises ValueError for BatchNorm, whose statistics would differ between ranks.
    """
    if not dist.is_initialized():
        return learner
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in learner.modules()):
        raise ValueError("BatchNorm knows only its own rank's images; several ranks need GroupNorm (norm group)")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    place = next(learner.parameters()).device
    mesh = init_device_mesh(place.type, (world().ranks,))
    low = torch.bfloat16 if precision == "bfloat16" else None  # gathered so; the shards stay float32, as do activations
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in [*blocks, learner]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for module in learner.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    learner.gather = lambda: None  # with FSDP's hooks around it
    register_fsdp_forward_method(learner, "gather")
    return learner


@contextmanager
def gathered(learner: nn.Module) -> Iterator[nn.Module]:
    """The learner with the parameters beside its blocks whole, so that any of its modules can be called alone."""
    if world().ranks == 1:
        yield learner
        return
    learner.gather()
    try:
        yield learner
    finally:
        learner.reshard()


def full(tensor: Tensor) -> Tensor:
    """A sharded tensor in one piece, on every rank, which must all ask; any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def own(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of every rank's tensor, in place and returned."""
    if world().ranks > 1:
        dist.all_reduce(tensor)
    return tensor


def any_rank(flag: bool) -> bool:
    """Whether it is so on any rank; every rank gets the same answer."""
    return bool(sum_over_ranks(torch.tensor(int(flag))))


def from_every_rank(value: T) -> list[T]:
    """What each rank has, in their order. Values are small and plain."""
    if world().ranks == 1:
        return [value]
    found: list = [None] * world().ranks
    dist.all_gather_object(found, value)
    return found


def from_rank_0(make: Callable[[], T]) -> T:
    """What `make` returns on rank 0, which alone calls it; its error is raised on every rank."""
    if world().ranks == 1:
        return make()
    found = [None, None]
    if on_rank_0():
        try:
            found[0] = make()
        except (ValueError, OSError) as error:
            found[1] = error
    dist.broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    return found[0]
