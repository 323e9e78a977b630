"""Ends a process of a run when its ranks make no progress, and says which of them is missing.

A rank that hangs (a stalled disk, a lost network) leaves the others waiting inside a collective
operation, where no Python code runs. So a thread of every process watches the time since its last
heartbeat. When that is too long, it holds a roll call through the store that all ranks share: the
threads of living processes answer, and those that do not are named.

torch.distributed.monitored_barrier at every step does not do it: it is gloo's only, costs 1 to 2 ms
a step, and names nobody if a rank hangs within a step, or is the one that would tell (measured).
"""

import os
import queue
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

PATIENCE = 600.0  # seconds that ranks wait for one that does not answer


class Watchdog:
    """Watches one process of a run. In a run of one process every method does nothing."""

    def __init__(self):
        self.store: Store | None = None
        self.rank = 0
        self.world_size = 1
        self.patience = PATIENCE
        self.heartbeats = 0
        self.last_heartbeat = 0.0
        self.stopped = threading.Event()

    def begin(self, store: "Store", rank: int, world_size: int, patience: float) -> None:
        """Watch rank `rank` of `world_size` ranks, which share `store`. The patience begins with
        its first heartbeat, so that a slow start is not taken for a hang."""
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.patience = patience
        self.heartbeats = 0
        self.stopped.clear()

    @property
    def common_store(self) -> "Store":
        """The store of a run of several ranks, from its beginning to its end."""
        assert self.store is not None, "no run of several ranks has begun"
        return self.store

    def heartbeat(self) -> None:
        """Note that this rank has made progress. Every rank calls this once a step, so their counts
        can be compared."""
        self.last_heartbeat = time.monotonic()
        self.heartbeats += 1
        if self.heartbeats == 1 and self.store is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def pause(self) -> None:
        """Stop the clock until the next heartbeat. Checkpoints and evaluations may take long, and
        report their own errors."""
        self.last_heartbeat = float("inf")

    def end(self) -> None:
        """The run is over: its ranks may now end at different times."""
        self.stopped.set()
        self.store = None

    def first_to_report(self) -> bool:
        """Whether no other rank has asked this before: only one rank reports an error or a hang."""
        return _first_to_report(self.common_store)

    def _watch(self) -> None:
        """Wait until the process makes no progress, then report and end it."""
        while not self.stopped.wait(min(1.0, self.patience / 10)):
            if time.monotonic() - self.last_heartbeat > self.patience:
                self._report()
                # The main thread waits inside a kernel, where no exception would reach it.
                os._exit(1)

    def _report(self) -> None:
        """Print which ranks are missing, on one rank only."""
        # Hold a roll call, in a thread of its own: it may never end if the store cannot be reached
        sentences: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._ask, args=(self.store, sentences), daemon=True).start()
        try:
            sentence = sentences.get(timeout=3 * self._time_to_answer())
        except queue.Empty:
            sentence = self._unreachable()
        if sentence is not None:  # else another rank prints it
            print(f"vitkit: {sentence}", file=sys.stderr, flush=True)

    def _ask(self, store: "Store", sentences: "queue.SimpleQueue[str | None]") -> None:
        """Put what the roll call says, or None if another rank is the first to report it."""
        try:
            sentence: str | None = self._roll_call(store)
        except RuntimeError:
            sentences.put(self._unreachable())
            return
        sentences.put(sentence if _first_to_report(store) else None)

    def _unreachable(self) -> str:
        """What this rank knows if it cannot reach the store."""
        return (
            f"rank {self.rank} came no further for {self.patience:g} s and cannot reach the "
            f"others; look at the network of {socket.gethostname()}. "
            "The same command continues from the last checkpoint"
        )

    def _time_to_answer(self) -> float:
        """Seconds that ranks have to answer a roll call."""
        return max(2.0, self.patience / 10)

    def _roll_call(self, store: "Store") -> str:
        """Which ranks do not answer, or have fallen behind, as one sentence. Raises RuntimeError if
        the store cannot be reached."""
        # Every living rank writes how far it is, and gives the others time to do so
        store.set(f"heartbeats/{self.rank}", str(self.heartbeats))
        time.sleep(self._time_to_answer())
        progress = {}
        for rank in range(self.world_size):
            if store.check([f"heartbeats/{rank}"]):
                progress[rank] = int(store.get(f"heartbeats/{rank}"))

        silent = [rank for rank in range(self.world_size) if rank not in progress]
        furthest = max(progress.values())
        behind = [rank for rank, heartbeats in progress.items() if heartbeats < furthest]
        if silent:
            problem = f"{_named(silent)} did not answer"
        elif behind:
            problem = f"{_named(behind)} fell behind"
        else:
            problem = "no rank came further"
        return (
            f"{problem} for {self.patience:g} s while the others waited; "
            "look there for a stalled disk, network or machine. "
            "The same command continues from the last checkpoint; `patience` waits longer"
        )


def _first_to_report(store: "Store") -> bool:
    try:
        return store.add("reported", 1) == 1  # add is atomic: it is 1 for one rank alone
    except RuntimeError:  # the store is gone with the machine that held it
        return True


def _named(ranks: list[int]) -> str:
    """ "rank 1, rank 3"."""
    return ", ".join(f"rank {rank}" for rank in ranks)


watchdog = Watchdog()  # of this process: a thread outlives the calls that start it
