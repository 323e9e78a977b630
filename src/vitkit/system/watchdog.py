"""Ends a process of a run when its ranks make no progress, and says which of them is missing.

A rank that hangs (a stalled disk, a lost network) leaves the others waiting inside a collective
operation, where no Python code runs. So a thread of every process watches the time since its last
heartbeat. When that is too long, it holds a roll call through the store that all ranks share: the
threads of living processes answer, and those that do not are named.

torch.distributed.monitored_barrier at every step does not do it: it is gloo's only, costs 1 to 2 ms
a step, and names nobody if a rank hangs within a step, or is the one that would tell (measured).
"""

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

PATIENCE = 600.0  # seconds that ranks wait for one that does not answer


class Watchdog:
    """The watch over one process. Outside of a run of several processes every method does
    nothing."""

    def __init__(self):
        self.store: Store | None = None
        self.rank = 0
        self.world_size = 1
        self.patience = PATIENCE
        self.heartbeats = 0
        self.last_heartbeat = 0.0
        self.stopped = threading.Event()

    def begin(self, store: "Store", rank: int, world_size: int, patience: float) -> None:
        """Watch rank `rank` of `world_size`, which all share `store`, from its first heartbeat
        on."""
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.patience = patience
        self.heartbeats = 0
        self.stopped.clear()

    def heartbeat(self) -> None:
        """This rank has made progress. Every rank calls this in step."""
        self.last_heartbeat = time.monotonic()
        self.heartbeats += 1
        if self.heartbeats == 1 and self.store is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def pause(self) -> None:
        """Expect no heartbeat until the next one: reading and writing may be slow, and report their
        own errors."""
        self.last_heartbeat = float("inf")

    def end(self) -> None:
        """Watch no longer."""
        self.stopped.set()
        self.store = None

    def first_to_fail(self) -> bool:
        """Whether no other rank has asked this before."""
        try:
            return self.store.add("failed", 1) == 1
        except RuntimeError:  # the store is gone with the machine that held it
            return True

    def _watch(self) -> None:
        """Wait until the process makes no progress, then report and end it."""
        while not self.stopped.wait(min(1.0, self.patience / 10)):
            if time.monotonic() - self.last_heartbeat > self.patience:
                self._report()
                os._exit(
                    1
                )  # the main thread waits inside a kernel, and no exception would reach it

    def _report(self) -> None:
        """Print which ranks are missing, on one rank only."""
        # The roll call may never return where the store cannot be reached, so it has a thread of
        # its own.
        sentences = [
            f"rank {self.rank} came no further for {self.patience:g} s and cannot reach the others; look at the network of "
            f"{socket.gethostname()}. The same command continues from the last checkpoint"
        ]
        asking = threading.Thread(target=self._ask, args=(self.store, sentences), daemon=True)
        asking.start()
        asking.join(3 * self._time_to_answer())
        if sentences[-1]:
            print(f"vitkit: {sentences[-1]}", file=sys.stderr, flush=True)

    def _time_to_answer(self) -> float:
        """Seconds that ranks have to answer a roll call."""
        return max(2.0, self.patience / 10)

    def _ask(self, store: "Store", sentences: list[str]) -> None:
        """Append what the roll call says, or an empty sentence where another rank says it."""
        with suppress(RuntimeError):
            sentence = self._roll_call(store)
            first = store.add("failed", 1) == 1
            sentences.append(sentence if first else "")

    def _roll_call(self, store: "Store") -> str:
        """Which ranks do not answer, or have fallen behind, as one sentence."""
        # Every living rank writes how far it is, and waits for the others to do so.
        store.set(f"here/{self.rank}", str(self.heartbeats))
        time.sleep(self._time_to_answer())
        progress = {}
        for rank in range(self.world_size):
            if store.check([f"here/{rank}"]):
                progress[rank] = int(store.get(f"here/{rank}"))

        silent = [rank for rank in range(self.world_size) if rank not in progress]
        behind = [
            rank for rank, heartbeats in progress.items() if heartbeats < max(progress.values())
        ]
        if silent:
            problem = f"{_named(silent)} did not answer"
        elif behind:
            problem = f"{_named(behind)} fell behind"
        else:
            problem = "no rank came further"
        return (
            f"{problem} for {self.patience:g} s while the others waited; look there for a stalled disk, network or machine. "
            f"The same command continues from the last checkpoint; --patience waits longer"
        )


def _named(ranks: list[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)


watchdog = Watchdog()
