"""Processes that prepare batches ahead of the one that needs them."""

import gc
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from vitkit.system.errors import WorkerDied

AHEAD = 2  # batches that each worker prepares before they are asked for
ORPHANED = 0.5  # seconds, at most, that a worker outlives the main process
# Workers are forked where that is safe: at once, and they share what the source holds in memory.
START = "fork" if sys.platform.startswith("linux") else "spawn"


def in_order(build, steps, workers: int, pin: bool = False, size: int = 0) -> Iterator:
    """build[step] for every step, in order, prepared by worker processes.

    Closing the iterator, or forgetting it, ends the workers.

    build: what has [step], and travels to workers; an exception that it returns is raised here.
    workers: 0 is none besides this one.
    pin: put tensors into page-locked memory.
    size: bytes of the tensors of an item, if there are many.
    Raises WorkerDied when a worker is killed.
    """
    if not workers:
        items = _in_this_process(build, steps, pin)
    elif fits_shared_memory(workers, size):
        items = _in_workers(build, steps, workers, pin)
    else:
        items = _through_pipes(build, steps, workers, pin)
    with closing(items):  # a traceback would hold on to it, and to its workers
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield item


def fits_shared_memory(workers: int, size: int) -> bool:
    """Whether items of `size` bytes can travel through /dev/shm, which has often 64 MB in a
    container.

    Beyond that a process dies of a bus error.
    """
    free = _shared_memory()
    return free is None or (AHEAD * workers + 1) * size <= free


def forked() -> bool:
    """Whether workers begin with all that this process holds in memory."""
    return START == "fork"


def _in_this_process(build, steps, pin: bool) -> Iterator:
    for step in steps:
        threads = torch.get_num_threads()
        # images are so small that waiting for another thread takes longer than the work
        torch.set_num_threads(1)
        try:
            item = build[step]
        finally:
            torch.set_num_threads(threads)
        yield _pinned(item, pin)


def _pinned(item, pin: bool):
    """A named tuple of tensors in page-locked memory, if `pin`; anything else as it is."""
    if not pin or not isinstance(item, tuple):
        return item
    return type(item)(*(tensor.pin_memory() for tensor in item))


def _through_pipes(build, steps, workers: int, pin: bool) -> Iterator:
    """As _in_workers, without shared memory: arrays are copied through pipes, which takes somewhat
    longer."""
    with closing(_in_workers(_AsArrays(build), steps, workers, pin=False)) as items:
        for item in items:
            if isinstance(item, tuple):
                item = type(item)(*map(torch.from_numpy, item))
            yield _pinned(item, pin)


@dataclass(frozen=True, eq=False)
class _AsArrays:
    """The items of `build`, tensors in a tuple as arrays, which travel without shared memory."""

    build: Any

    def __getitem__(self, step: Any) -> Any:
        item = self.build[step]
        if isinstance(item, tuple):
            return type(item)(*(tensor.numpy() for tensor in item))
        return item


def _in_workers(build, steps, workers: int, pin: bool) -> Iterator:
    items = _started(build, steps, workers, pin)
    try:
        yield from items
        return
    except (RuntimeError, EOFError, OSError) as error:
        # A worker died, which the loader, a pipe or a socket noticed; or it raised an exception.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raised_in_worker = reason.startswith("Caught")
        if raised_in_worker:
            raise
    except KeyboardInterrupt:
        # in the middle of a shard, say: the loader would wait five seconds for each
        for worker in items._workers:
            worker.terminate()
        raise

    # A worker is dead. PyTorch's signal handler raises RuntimeError for it too, maybe a moment
    # later, wherever the main process is then: let it come here.
    with suppress(RuntimeError):
        time.sleep(0.1)
    # Let go of the loader, so that it ends its workers. The handler above would hold on to it, and
    # so do cycles.
    del items
    gc.collect()
    raise WorkerDied(
        f"a process that prepares images was killed, most likely for want of memory: use fewer "
        f"--data.workers than {workers}, or 0 to prepare them in the main process ({reason})"
    )


def _started(build, steps, workers: int, pin: bool) -> Iterator:
    """The iterator of a DataLoader, its workers running."""
    with warnings.catch_warnings():
        # More workers than cores may be right if reading waits for a network.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        # Python 3.12 warns of every fork beside threads: theirs hold no lock that a worker, which
        # computes on one thread of its own, would take.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        loader = DataLoader(
            build,
            batch_size=None,
            sampler=steps,
            num_workers=workers,
            collate_fn=_unchanged,
            worker_init_fn=partial(_ignore_signals, os.getpid()),
            pin_memory=pin,
            prefetch_factor=AHEAD,
            multiprocessing_context=START,
        )
        return iter(loader)


def _unchanged(item):
    """Instead of PyTorch's default, which makes tensors of arrays."""
    return item


def _ignore_signals(parent: int, number: int) -> None:
    """Leave signals to the main process: schedulers send them to everyone, SLURM twice, and the run
    wants to save first.

    SIGTERM ends a worker only when the main process sends it. A main process that ends, or is
    killed, takes its workers along.
    """
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigtimedwait"):  # which says who sent it; macOS cannot
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_parent, args=[parent], daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """End this process, whatever it is doing, when the main one asks for it or is no more."""
    while os.getppid() == parent:
        request = signal.sigtimedwait({signal.SIGTERM}, ORPHANED)
        if request and request.si_pid == parent:
            break
    os._exit(0)


def _shared_memory() -> int | None:
    """Free bytes of /dev/shm; None if there is none."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return None
    return shutil.disk_usage(shared).free
