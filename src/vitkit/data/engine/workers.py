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
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader

AHEAD = 2  # batches that each worker prepares before they are asked for
ORPHANED = 0.5  # seconds, at most, that a worker outlives the main process
# Workers are forked where that is safe: at once, and they share what the source holds in memory.
START = "fork" if sys.platform.startswith("linux") else "spawn"


class WorkerDied(RuntimeError):
    """A process that prepares batches was killed; the message says what to do."""


def in_order(build, steps, workers: int, pin: bool = False, ahead: int = AHEAD) -> Iterator:
    """build[step] for every step, in order, prepared by worker processes; an exception that build returns is raised.

    Closing the iterator, or forgetting it, ends the workers. workers: 0 is none besides this one. pin: put tensors into
    page-locked memory. Raises WorkerDied when a worker is killed.
    """
    for item in (
        _in_workers(build, steps, workers, pin, ahead)
        if workers
        else _in_this_process(build, steps, pin)
    ):
        if isinstance(item, Exception):
            raise item
        yield item


def batches_ahead(workers: int, size: int) -> int:
    """How many batches of `size` bytes each worker may prepare: they travel through /dev/shm, often 64 MB in a container.

    Raises ValueError where not even one each would fit; without this the process would die of a bus error.
    """
    room = _shared_memory()
    if not workers or room is None or (AHEAD * workers + 1) * size <= room:
        return AHEAD
    if (workers + 1) * size > room:
        raise ValueError(
            f"{workers} workers need {(workers + 1) * size >> 20:,} MB of shared memory and /dev/shm has {room >> 20:,} "
            f"free; use fewer --data.workers, or start the container with more (docker run --shm-size=2g)"
        )
    return 1


def forked() -> bool:
    """Whether workers begin with all that this process holds in memory."""
    return START == "fork"


def _in_this_process(build, steps, pin: bool) -> Iterator:
    for step in steps:
        threads = torch.get_num_threads()
        torch.set_num_threads(
            1
        )  # images are so small that waiting for another thread takes longer than the work
        try:
            item = build[step]
        finally:
            torch.set_num_threads(threads)
        yield (
            type(item)(*(tensor.pin_memory() for tensor in item))
            if pin and isinstance(item, tuple)
            else item
        )


def _in_workers(build, steps, workers: int, pin: bool, ahead: int) -> Iterator:
    with warnings.catch_warnings():
        # More workers than cores may be right where reading waits for a network; and Python 3.12 warns of every fork
        # beside threads: theirs hold no lock that a worker, which computes on one thread of its own, would take.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        items = iter(
            DataLoader(
                build,
                batch_size=None,
                sampler=steps,
                num_workers=workers,
                collate_fn=_unchanged,
                worker_init_fn=partial(_begin, os.getpid()),
                pin_memory=pin,
                prefetch_factor=ahead,
                multiprocessing_context=START,
            )
        )
    try:
        yield from items
        return
    except (
        RuntimeError,
        EOFError,
        OSError,
    ) as error:  # a dead worker is missed by the loader, a pipe or a socket
        said = (str(error) or type(error).__name__).splitlines()[0]
        if said.startswith("Caught"):  # raised in a worker, not by its death
            raise
    except KeyboardInterrupt:
        for worker in (
            items._workers
        ):  # in the middle of a shard, say: the loader would wait five seconds for each
            worker.terminate()
        raise
    with suppress(RuntimeError):
        time.sleep(
            0.1
        )  # word of the death, which PyTorch raises wherever the main process is, may still be on its way
    del items  # outside of the handler, which would hold on to it and to the dead worker; so does the odd cycle
    gc.collect()
    raise WorkerDied(
        f"a process that prepares images was killed, most likely for want of memory: use fewer --data.workers than "
        f"{workers}, or 0 to prepare them in the main process ({said})"
    )


def _unchanged(item):
    """Instead of PyTorch's default, which makes tensors of arrays."""
    return item


def _begin(parent: int, number: int) -> None:
    """Leave signals to the main process: schedulers send them to everyone, SLURM twice, and the run wants to save itself first.

    SIGTERM ends a worker only when the main process sends it; one that goes, or is killed, takes its workers along.
    """
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigtimedwait"):  # which says who sent it; macOS cannot
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with, args=[parent], daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when the main one asks for it, or is no more: it may be in the middle of a shard, or of an hour."""
    while os.getppid() == parent:
        asked = signal.sigtimedwait({signal.SIGTERM}, ORPHANED)
        if asked and asked.si_pid == parent:
            break
    os._exit(0)


def _shared_memory() -> int | None:
    """Free bytes of /dev/shm; None where there is none."""
    shared = Path("/dev/shm")
    return shutil.disk_usage(shared).free if shared.is_dir() else None
