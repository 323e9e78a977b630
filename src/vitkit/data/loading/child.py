"""Work in one process of its own, where a library that crashes costs nothing but a sentence."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vitkit.data.loading.workers import START


class Crashed(Exception):
    """The process ended in the middle of an item, which is the error's only argument."""


def in_child(task: Callable[[Any], Any], items: Sequence) -> Iterator:
    """task(item) for every item, in order, all in one child process.

    The task is a function of a module or a `partial` of one, and returns what can be pickled. What
    it raises is raised here. Raises Crashed if the process died.
    """
    context = multiprocessing.get_context(START)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(task, items, sender), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork beside threads: theirs hold no lock that a task takes
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
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


def _work(task: Callable[[Any], Any], items: Sequence, sender) -> None:
    """In the child: send what the task returns or raises for each item."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the main process answers Ctrl-C, and ends this one
    _die_in_silence()
    for item in items:
        try:
            result = task(item)
        except Exception as error:
            result = error
        sender.send(result)


def _die_in_silence() -> None:
    """Nothing on the terminal, and no core dump on the disk, if this process crashes."""
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    with contextlib.suppress(ImportError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
