"""Processes that prepare batches, or do other tasks, ahead of the one that needs their results; and
one of its own for work in which a library may crash.

A task is a function of one item, such as (epoch, example) of every row of a batch. Worker processes
get a copy of it, so it is a function of a module, a `partial` of one, or a method of a value that
travels.
"""

import faulthandler
import gc
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vitkit.system.errors import VitkitError, WorkerDied

AHEAD = 2  # results that each worker prepares before they are asked for
ORPHANED = 0.5  # seconds, at most, that a worker outlives the main process
# Workers are forked where that is safe: at once, and they share what the source holds in memory.
START: Literal["fork", "spawn"] = "fork" if sys.platform.startswith("linux") else "spawn"


def in_order(
    task: Callable[[Any], Any],
    items: Iterable,
    workers: int,
    pin: bool = False,
    size: int = 0,
    ahead: int = AHEAD,
) -> Generator[Any, None, None]:
    """task(item) for every item, in order, prepared by worker processes.

    Closing the iterator, or forgetting it, ends the workers.

    workers: 0 is none besides this process.
    pin: put tensors into page-locked memory.
    size: bytes of the tensors of a result, if there are many.
    ahead: results that each worker prepares before they are asked for. Items go to workers in turns.
    Raises WorkerDied when a worker is killed, and what the task raises.
    """
    if not workers:
        results = _in_this_process(task, items, pin)
    elif fits_shared_memory(workers, size, ahead):
        results = _in_workers(task, items, workers, pin, ahead)
    else:
        results = _through_pipes(task, items, workers, pin, ahead)
    with closing(results):  # a traceback would hold on to it, and to its workers
        for result in results:
            if isinstance(result, Exception):
                raise result
            yield result


def ranges(count: int, size: int) -> list[range]:
    """The numbers from 0 to count - 1 in ranges of `size`: items of a task over many examples."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def worth_starting(workers: int, items: int) -> int:
    """How many of `workers` processes are worth starting for this many items: starting one takes as
    long as some items."""
    return min(workers, items // 4)


def fits_shared_memory(workers: int, size: int, ahead: int = AHEAD) -> bool:
    """Whether results of `size` bytes can travel through /dev/shm, which has often 64 MB in a
    container, and which the ranks of a machine share. Beyond that a process dies of a bus error."""
    free = _shared_memory()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # torchrun's, on this machine
    return free is None or ranks * (ahead * workers + 1) * size <= free


def forked() -> bool:
    """Whether workers are forked, and so share the memory of this process."""
    return START == "fork"


def _in_this_process(task: Callable, items: Iterable, pin: bool) -> Generator[Any, None, None]:
    for item in items:
        with _one_thread():
            result = task(item)
        yield _pinned(result, pin)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A block in which PyTorch, if it is there, computes on one thread: images are so small that
    waiting for another takes longer than the work."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _pinned(result, pin: bool):
    """A named tuple of tensors in page-locked memory, if `pin`; anything else as it is."""
    if not pin or not isinstance(result, tuple):
        return result
    return type(result)(*(tensor.pin_memory() for tensor in result))


def _through_pipes(
    task: Callable, items: Iterable, workers: int, pin: bool, ahead: int
) -> Generator[Any, None, None]:
    """As _in_workers, without shared memory: arrays are copied through pipes, which takes somewhat
    longer."""
    import torch

    arrays_task = partial(_as_arrays, task)
    with closing(_in_workers(arrays_task, items, workers, False, ahead)) as results:
        for result in results:
            if isinstance(result, tuple):
                result = type(result)(*map(torch.from_numpy, result))
            yield _pinned(result, pin)


def _as_arrays(task: Callable, item: Any) -> Any:
    """task(item), tensors in a tuple as arrays, which travel without shared memory."""
    result = task(item)
    if isinstance(result, tuple):
        return type(result)(*(tensor.numpy() for tensor in result))
    return result


def _in_workers(
    task: Callable, items: Iterable, workers: int, pin: bool, ahead: int
) -> Generator[Any, None, None]:
    """task(item) for every item, or the exception that a user can cause."""
    results = _started(task, items, workers, pin, ahead)
    try:
        yield from results
        return  # below this `try`, a worker is dead
    except (RuntimeError, EOFError, OSError) as error:
        # The loader, a pipe or a socket noticed that a worker is dead; or our code failed in one,
        # which the loader raises again, its message beginning with "Caught".
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if reason.startswith("Caught"):
            raise
        if isinstance(error, ConnectionError | EOFError):  # that says nothing more
            reason = ""
    except KeyboardInterrupt:
        # A worker may be in the middle of a shard: the loader would wait five seconds for each.
        for worker in results._workers:  # type: ignore[attr-defined]
            worker.terminate()
        raise

    # Let go of the loader, so that it ends its workers. The exception above held on to it, and so
    # do cycles.
    del results
    gc.collect()
    sentence = (
        "a process that prepares images was killed, most likely for want of memory: use fewer "
        f"`workers` (of a run: `data.workers`) than {workers}, or 0 to prepare them in "
        "the main process"
    )
    if reason:
        sentence += f" ({reason})"
    raise WorkerDied(sentence)


@dataclass(frozen=True, eq=False)
class _TaskAsDataset:
    """What a DataLoader takes: dataset[item] is task(item).

    Errors that a user can put right (VitkitError and OSError) are returned, and raised again by
    `in_order`. The DataLoader would put "Caught BadImage in DataLoader worker process 0" and a
    traceback before their sentence. All others are bugs: they keep both.
    """

    task: Callable[[Any], Any]

    def __getitem__(self, item: Any) -> Any:
        try:
            return self.task(item)
        except (VitkitError, OSError) as error:
            return error


def _started(task: Callable, items: Iterable, workers: int, pin: bool, ahead: int) -> Iterator:
    """The iterator of a DataLoader, its workers running."""
    from torch.utils.data import DataLoader

    with _silent_forks():
        loader: DataLoader = DataLoader(
            _TaskAsDataset(task),  # type: ignore[arg-type]  # its base class imports PyTorch
            batch_size=None,
            sampler=items,
            num_workers=workers,
            collate_fn=_unchanged,
            worker_init_fn=partial(_ignore_signals, os.getpid()),
            pin_memory=pin,
            prefetch_factor=ahead,
            multiprocessing_context=START,
        )
        with _same_handler_of_dead_children(), _interrupts_held():
            return iter(loader)


@contextmanager
def _silent_forks() -> Iterator[None]:
    """A block in which processes are started without warnings that do not apply."""
    with warnings.catch_warnings():
        # More workers than cores may be right if reading waits for a network.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        # Python 3.12 warns of every fork beside threads: theirs hold no lock that a worker, which
        # computes on one thread of its own, would take.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C in this block. A worker that is forked in it does not get it until it leaves
    it to the main process, and would end with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _same_handler_of_dead_children() -> Iterator[None]:
    """Undo what PyTorch does to SIGCHLD in this block.

    Its handler raises RuntimeError for a dead worker wherever the main process is then: in the
    middle of a backward pass, of writing a checkpoint, or in a destructor, which only prints it.
    Without it the loader notices a dead worker itself, when it has waited for five seconds.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not hasattr(signal, "SIGCHLD"):
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _unchanged(result):
    """Instead of PyTorch's default, which makes tensors of arrays."""
    return result


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


# One process, in which a crash costs nothing but a sentence


class Crashed(Exception):
    """The process ended in the middle of an item, which is the error's only argument."""


def in_child(task: Callable[[Any], Any], items: Sequence) -> Generator[Any, None, None]:
    """task(item) for every item, in order, all in one child process.

    The task is a function of a module or a `partial` of one, and returns what can be pickled. Its
    exceptions are raised here. Raises Crashed if the process died.
    """
    import multiprocessing  # in here: most answers need no process

    context = multiprocessing.get_context(START)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(  # type: ignore[attr-defined]  # every context has one
        target=_send_results, args=(task, items, sender), daemon=True
    )
    with _silent_forks():
        child.start()
    sender.close()  # the child's copy is the only one then, so that its death ends the pipe
    try:
        for item in items:
            try:
                result = receiver.recv()
            except EOFError:
                raise Crashed(item) from None
            if isinstance(result, Exception):
                raise result
            yield result
    finally:
        receiver.close()
        child.kill()
        child.join()


def _send_results(task: Callable[[Any], Any], items: Sequence, sender) -> None:
    """In the child: send what the task returns or raises for each item."""
    # The main process answers Ctrl-C, and ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # Nothing on the terminal, and no core dump on the disk, if it crashes
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(ImportError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    for item in items:
        try:
            result = task(item)
        except Exception as error:  # which the parent raises
            result = error
        sender.send(result)
