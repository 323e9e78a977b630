"""A server of several processes, which share a socket and each have a copy of the model.

The parent computes nothing. It restarts processes that die, and forwards signals: SIGTERM and
SIGINT to all processes together, SIGHUP to one after the other, so that the others answer
meanwhile.
"""

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from tempfile import TemporaryDirectory

from vitkit.apps.serve.http.server import (
    READY,
    Server,
    StartSettings,
    gets_signals,
    prepare_process,
)
from vitkit.apps.serve.http.telemetry import SHARED, log, start_logs
from vitkit.system.environment import variables_set_to
from vitkit.system.errors import Unsupported, VitkitError
from vitkit.system.machine import cpus

LOOK = 0.2  # seconds between two checks for signals
DEATHS = 5  # early deaths of a worker after which it is not restarted
SOON = 30.0  # seconds within which a death is early


@dataclass(eq=False)
class _Worker:
    """A worker process, and the pipe through which it reports its state."""

    number: int
    process: BaseProcess
    pipe: Connection
    began: float = field(default_factory=time.monotonic)
    is_ready: bool = False


class Workers:
    """The worker processes of a server."""

    def __init__(self, plan: StartSettings, bound: socket.socket, count: int):
        self.plan = plan
        self.bound = bound
        self.count = count
        self.workers: dict[int, _Worker] = {}
        self.deaths = 0
        self.stopping = False
        self.ready_word = ""
        """What they say when they can answer."""
        self.was_ready = False
        """Whether all workers were ready at the same time once."""
        self.reloads: list[int] = []
        """The workers that have yet to reload the model."""
        self.reloading: int | None = None

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until a signal ends the server. ready: called with their word when all workers can answer.

        Raises VitkitError with the reason why a worker could not start, and if workers die repeatedly
        soon after their start.
        """
        start_logs()
        with TemporaryDirectory(prefix="vitkit-serve-") as folder, self._signals():
            os.environ[SHARED] = folder  # the processes share their counters there
            try:
                for number in range(self.count):
                    if not self.stopping:
                        self._start(number)
                # Read messages of the workers until all have ended
                while self.workers:
                    pipes = {worker.pipe: worker for worker in self.workers.values()}
                    heard = wait(list(pipes), LOOK)
                    for pipe, worker in pipes.items():
                        if pipe in heard:
                            self._handle_message(worker)
                    if not self.was_ready and all(
                        worker.is_ready for worker in self.workers.values()
                    ):
                        self.was_ready = True
                        ready(self.ready_word)
                    self._reload_next()
            finally:
                self._end()
                del os.environ[SHARED]

    def _start(self, number: int) -> None:
        """Start a worker with its share of the CPUs, and with a GPU of its own."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        share = max(1, cpus() // self.count)
        environment = {
            "LOCAL_RANK": str(number),
            "LOCAL_WORLD_SIZE": str(self.count),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(share)),
        }
        with variables_set_to(environment):
            process = context.Process(
                target=_worker_main, args=(self.plan, self.bound, theirs), name=f"worker {number}"
            )
            process.start()
        theirs.close()
        self.workers[number] = _Worker(number, process, ours)
        if self.stopping:  # a signal arrived while the process started
            process.terminate()

    def _handle_message(self, worker: _Worker) -> None:
        """Read a message of a worker and act on it; if its pipe is closed, the worker has died."""
        try:
            word = worker.pipe.recv_bytes().decode()
        except (EOFError, OSError):
            self._handle_end(worker)
            return
        if word in READY:
            worker.is_ready = True
            self.ready_word = word
        elif word in ("reloaded", "kept"):
            self.reloading = None
        elif self.was_ready:  # it could not start, but other workers answer
            log("worker could not begin", {"worker": worker.number, "error": word}, logging.ERROR)
        else:
            raise Unsupported(word)

    def _handle_end(self, worker: _Worker) -> None:
        """Handle the end of a worker: expected after a signal; otherwise restart it."""
        from prometheus_client.multiprocess import mark_process_dead

        worker.process.join()
        worker.pipe.close()
        mark_process_dead(worker.process.pid)
        del self.workers[worker.number]
        if self.reloading == worker.number:
            self.reloading = None
        if self.stopping:
            return
        status = worker.process.exitcode
        log("worker died", {"worker": worker.number, "status": status})
        self.deaths += 1
        if time.monotonic() - worker.began > SOON:
            self.deaths = 1
        if self.deaths > DEATHS:
            raise Unsupported(
                f"the server's processes die repeatedly, the last with status {status}; most "
                "likely the memory is too small for this number of `workers`"
            )
        self._start(worker.number)

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """A block in which signals are forwarded to the workers; signals of a user's program are
        not changed."""
        if not gets_signals():
            yield
            return
        before = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, self._stop)
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._reload)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame) -> None:
        """Signal all workers to end. The parent closes its socket first, because connections that
        it accepts would never be answered."""
        self.stopping = True
        self.bound.close()
        for worker in self.workers.values():
            worker.process.terminate()

    def _reload(self, number: int, frame) -> None:
        self.reloads = list(self.workers)

    def _reload_next(self) -> None:
        """Let the next worker reload the model, when the previous one has done so."""
        if self.reloading is not None or not self.reloads or self.stopping:
            return
        for number in list(self.reloads):
            worker = self.workers.get(number)
            if worker is not None and not worker.is_ready:
                continue  # it gets its turn when it is ready: it may have opened the old model
            self.reloads.remove(number)
            if worker is not None:
                self.reloading = number
                assert worker.process.pid is not None  # a started process has one
                os.kill(worker.process.pid, signal.SIGHUP)
                return

    def _end(self) -> None:
        """Terminate the remaining workers, after an error."""
        self.bound.close()
        for worker in self.workers.values():
            worker.process.terminate()
        for worker in self.workers.values():
            worker.process.join(self.plan.grace)
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()


def _worker_main(plan: StartSettings, bound: socket.socket, pipe: Connection) -> None:
    """Main function of a worker process."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes: the parent forwards it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def notify(word: str) -> None:
        pipe.send_bytes(word.encode())

    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_process()
    try:
        Server(plan, bound, notify).run()
    except (VitkitError, OSError) as error:
        notify(str(error))
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    """End this process like SIGTERM if its parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # workers are child processes
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
