"""Worker processes that prepare batches, or do other tasks, ahead of the process that needs the results;
and a child process for work in which a library may crash.

A task is a function of one item, such as the (epoch, example) of every row of a batch. Worker processes
get a pickled copy of it, so it must be a function of a module, a `partial` of one, or a method of a value
that can be pickled.
"""

import faulthandler
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from vitkit.system.console.messages import say
from vitkit.system.errors import VitkitError, WorkerDied
from vitkit.system.machine import cpus

AHEAD = 2  # results that each worker prepares in advance
ORPHANED = 0.5  # seconds, at most, that a worker outlives the main process
# Workers are forked where that is safe: they start immediately, and share the memory of the source.
START: Literal["fork", "spawn"] = "fork" if sys.platform.startswith("linux") else "spawn"


def in_order(
    task: Callable[[Any], Any],
    items: Iterable,
    workers: int,
    pin: bool = False,
    size: int = 0,
    ahead: int = AHEAD,
) -> Generator[Any, None, None]:
    """Yield task(item) for every item, in order, prepared by worker processes.

    Closing or deleting the generator ends the workers.

    workers: number of worker processes; 0 runs the task in this process, and so does a process that
        may not start any, which a message says.
    pin: put tensors into page-locked memory.
    size: bytes of the tensors of a result, if there are many.
    ahead: number of results that each worker prepares in advance. Workers take items in turn.
    Raises WorkerDied when a worker is killed, and the exceptions of the task.
    """
    if workers and not may_start_workers():
        _say_that_none_may_start()
        workers = 0
    if not workers:
        results = _in_this_process(task, items, pin)
    elif fits_shared_memory(workers, size, ahead):
        results = _in_workers(task, items, workers, pin, ahead)
    else:
        results = _through_pipes(task, items, workers, pin, ahead)
    with closing(results):  # otherwise a traceback would keep it, and its workers, alive
        for result in results:
            if isinstance(result, Exception):
                raise result
            yield result


def ranges(count: int, size: int) -> list[range]:
    """The numbers from 0 to count - 1 in ranges of `size`: items of a task over many examples."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def may_start_workers() -> bool:
    """Whether this process may start others. Python forbids it to daemonic processes, such as those of
    `multiprocessing.Pool`."""
    return not multiprocessing.current_process().daemon


def one_per_cpu() -> int:
    """Number of worker processes for work without a model: one for each CPU; 0 if this process may not start
    any."""
    if not may_start_workers():
        return 0
    return cpus()


@cache  # once, although a run starts workers many times
def _say_that_none_may_start() -> None:
    say(
        "this process is daemonic, as those of multiprocessing.Pool are, and may not start `workers` of "
        "its own: it prepares the images itself"
    )


def worth_starting(workers: int, items: int) -> int:
    """The number of processes, up to `workers`, that are worth starting for this many items: starting one
    takes as long as some items."""
    return min(workers, items // 4)


def fits_shared_memory(workers: int, size: int, ahead: int = AHEAD) -> bool:
    """Whether results of `size` bytes fit in /dev/shm, which often has 64 MB in a container and is shared
    by the ranks of a machine. A process that exceeds it is killed by a bus error."""
    free = _shared_memory()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # torchrun's, on this machine
    return free is None or ranks * (ahead * workers + 1) * size <= free


def forked() -> bool:
    """Whether workers are forked, and so share the memory of this process."""
    return START == "fork"


def _in_this_process(task: Callable, items: Iterable, pin: bool) -> Generator[Any, None, None]:
    """`in_order` without workers."""
    for item in items:
        with _one_thread():
            result = task(item)
        yield _pinned(result, pin)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A context in which PyTorch, if it is imported, computes on one thread: images are so small that
    synchronising threads takes longer than the work."""
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
    """With `pin`, a named tuple of tensors in page-locked memory; any other result unchanged."""
    if not pin or not isinstance(result, tuple):
        return result
    return type(result)(*(tensor.pin_memory() for tensor in result))


def _through_pipes(
    task: Callable, items: Iterable, workers: int, pin: bool, ahead: int
) -> Generator[Any, None, None]:
    """`_in_workers` without shared memory: arrays are copied through pipes, which takes somewhat longer."""
    import torch

    arrays_task = partial(_as_arrays, task)
    with closing(_in_workers(arrays_task, items, workers, False, ahead)) as results:
        for result in results:
            if isinstance(result, tuple):
                result = type(result)(*map(torch.from_numpy, result))
            yield _pinned(result, pin)


def _as_arrays(task: Callable, item: Any) -> Any:
    """task(item), with the tensors of a tuple as arrays, which are sent without shared memory."""
    result = task(item)
    if isinstance(result, tuple):
        return type(result)(*(tensor.numpy() for tensor in result))
    return result


def _in_workers(
    task: Callable, items: Iterable, workers: int, pin: bool, ahead: int
) -> Generator[Any, None, None]:
    """Yield task(item) for every item, or the VitkitError or OSError that it raised."""
    results = _started(task, items, workers, pin, ahead)
    try:
        yield from results
        return  # the code after the `try` statement handles a dead worker
    except (RuntimeError, EOFError, OSError) as error:
        # The loader, a pipe or a socket noticed that a worker is dead. Or a task failed: then the loader
        # raises the exception again, with a message that begins with "Caught".
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if reason.startswith("Caught"):
            raise
        if isinstance(error, ConnectionError | EOFError):  # without further information
            reason = ""
    except KeyboardInterrupt:
        # A worker may be busy, and the loader would wait five seconds for each of them
        for worker in results._workers:  # type: ignore[attr-defined]
            worker.terminate()
        raise

    # Delete the loader, so that it ends its workers. The exception above referred to it, and so do
    # reference cycles.
    del results
    gc.collect()
    sentence = (
        "a process that prepares images was killed, probably because memory ran out: use fewer "
        f"`workers` (of a run: `data.workers`) than {workers}, or 0 to prepare them in "
        "the main process"
    )
    if reason:
        sentence += f" ({reason})"
    raise WorkerDied(sentence)


@dataclass(frozen=True, eq=False)
class _TaskAsDataset:
    """A task as the dataset of a DataLoader: dataset[item] is task(item).

    Errors that a user can correct (VitkitError and OSError) are returned, and `in_order` raises them.
    If they were raised here, the DataLoader would put "Caught BadImage in DataLoader worker process 0"
    and a traceback before their message. All other exceptions are bugs, and keep both.
    """

    task: Callable[[Any], Any]

    def __getitem__(self, item: Any) -> Any:
        try:
            return self.task(item)
        except (VitkitError, OSError) as error:
            return error


def _started(task: Callable, items: Iterable, workers: int, pin: bool, ahead: int) -> Iterator:
    """The iterator of a DataLoader with running workers."""
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
        with _sigchld_handler_kept(), _interrupts_held():
            return iter(loader)


@contextmanager
def _silent_forks() -> Iterator[None]:
    """A context in which processes are started without warnings that do not apply here."""
    with warnings.catch_warnings():
        # More workers than cores may be useful if they wait for a network
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        # Python 3.12 warns of every fork in a process with threads. The threads here hold no lock that a
        # worker, which computes on a single thread, would need.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C in this context. A worker that is forked in it inherits this until it ignores the
    signal itself; otherwise an early Ctrl-C would end it with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _sigchld_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGCHLD that PyTorch replaces in this context.

    PyTorch's handler raises RuntimeError for a dead worker wherever the main process is at that moment:
    in a backward pass, while a checkpoint is written, or in a destructor, which only prints the error.
    Without it the loader notices a dead worker when it has waited for five seconds.
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
    """Replace PyTorch's default, which converts arrays to tensors."""
    return result


def _ignore_signals(parent: int, number: int) -> None:
    """Leave signals to the main process: schedulers send them to all processes, SLURM twice, and the run
    saves first.

    SIGTERM ends a worker only if the main process sends it. Workers end with the main process, also if
    it is killed.
    """
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigtimedwait"):  # it returns the sender; macOS does not have it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_parent, args=[parent], daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """End this process at any point of its work when the main process requests it or has ended."""
    while os.getppid() == parent:
        request = signal.sigtimedwait({signal.SIGTERM}, ORPHANED)
        if request and request.si_pid == parent:
            break
    os._exit(0)


def _shared_memory() -> int | None:
    """Free bytes of /dev/shm; None if it does not exist."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return None
    return shutil.disk_usage(shared).free


# A child process for work in which a library may crash


class Crashed(Exception):
    """The child process crashed while it processed an item, which is the only argument of this error."""


def in_child(task: Callable[[Any], Any], items: Sequence) -> Generator[Any, None, None]:
    """Yield task(item) for every item, in order, computed in one child process.

    The task is a function of a module or a `partial` of one, and its results can be pickled. Its
    exceptions are raised here. Raises Crashed if the process crashed. A process that may not start others
    computes them itself, so that a crash ends it.
    """
    if not may_start_workers():
        yield from map(task, items)
        return
    context = multiprocessing.get_context(START)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(  # type: ignore[attr-defined]  # every context has one
        target=_send_results, args=(task, items, sender), daemon=True
    )
    with _silent_forks():
        child.start()
    sender.close()  # only the child holds a sender now, so its death closes the pipe
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
    """In the child process: send the result or the exception of the task for each item."""
    # The main process handles Ctrl-C, and ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # If it crashes, nothing is printed, and no core dump is written
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(ImportError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    for item in items:
        try:
            result = task(item)
        except Exception as error:  # the parent raises it
            result = error
        sender.send(result)
