"""Ends a process of a run when its ranks make no progress, and reports which of them is missing.

If a rank hangs (a stalled disk, a lost network), the others wait inside a collective operation, where no
Python code runs. So a thread of every process watches the time since its last heartbeat. If that is too
long, it checks all ranks through their shared store: the threads of living processes write to it, and
ranks that do not are reported.

torch.distributed.monitored_barrier at every step is no alternative: it supports only gloo, takes 1 to 2 ms
per step, and names no rank if one hangs within a step, or if the reporting one hangs (measured).
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

PATIENCE = 600.0  # seconds that ranks wait for one that does not respond


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
        """Watch rank `rank` of `world_size` ranks, which share `store`. The time starts with the first
        heartbeat, so that a slow start does not count as hanging."""
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
        """Record that this rank has made progress. Every rank calls this once per step, so their counts
        can be compared."""
        self.last_heartbeat = time.monotonic()
        self.heartbeats += 1
        if self.heartbeats == 1 and self.store is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def pause(self) -> None:
        """Stop the clock until the next heartbeat, for checkpoints and evaluations, which may take long and
        report their own errors."""
        self.last_heartbeat = float("inf")

    def end(self) -> None:
        """End the watch: ranks may now end at different times."""
        self.stopped.set()
        self.store = None

    def first_to_report(self) -> bool:
        """Whether this is the first rank that calls this: only one rank reports an error or a hang."""
        return _first_to_report(self.common_store)

    def _watch(self) -> None:
        """Wait until the process makes no progress; then report and end it."""
        while not self.stopped.wait(min(1.0, self.patience / 10)):
            if time.monotonic() - self.last_heartbeat > self.patience:
                self._report()
                # The main thread waits inside a kernel, where no exception can reach it.
                os._exit(1)

    def _report(self) -> None:
        """Print the missing ranks, on only one rank."""
        # Check the ranks in a separate thread: it may never end if the store cannot be reached
        sentences: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._put_report, args=(self.store, sentences), daemon=True).start()
        try:
            sentence = sentences.get(timeout=3 * self._time_to_answer())
        except queue.Empty:
            sentence = self._unreachable()
        if sentence is not None:  # otherwise another rank prints it
            print(f"vitkit: {sentence}", file=sys.stderr, flush=True)

    def _put_report(self, store: "Store", sentences: "queue.SimpleQueue[str | None]") -> None:
        """Put the result of the check, or None if another rank reports it first."""
        try:
            sentence: str | None = self._check_ranks(store)
        except RuntimeError:
            sentences.put(self._unreachable())
            return
        sentences.put(sentence if _first_to_report(store) else None)

    def _unreachable(self) -> str:
        """The report of a rank that cannot reach the store."""
        return (
            f"rank {self.rank} came no further for {self.patience:g} s and cannot reach the "
            f"others; look at the network of {socket.gethostname()}. "
            "The same command continues from the last checkpoint"
        )

    def _time_to_answer(self) -> float:
        """Seconds within which ranks must respond to the check."""
        return max(2.0, self.patience / 10)

    def _check_ranks(self, store: "Store") -> str:
        """Name the ranks that do not respond, or are behind, in one sentence. Raises RuntimeError if the store
        cannot be reached."""
        # Every living rank writes its number of heartbeats, and waits for the others to do so
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
        return store.add("reported", 1) == 1  # add is atomic: only one rank gets 1
    except RuntimeError:  # the machine with the store is gone
        return True


def _named(ranks: list[int]) -> str:
    """A list of ranks in words: "rank 1, rank 3"."""
    return ", ".join(f"rank {rank}" for rank in ranks)


watchdog = Watchdog()  # one per process: its thread outlives the calls that start it
