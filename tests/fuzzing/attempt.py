"""Attempts in a process of their own, within limits: what each says, and how it ends."""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf
from pathlib import Path
from typing import NamedTuple

from vitkit.system.console.text import printable
from vitkit.system.errors import VitkitError

SECONDS = 20  # that an attempt may take; the files are small
MEMORY = 2 << 30  # bytes beyond what the process begins with
TOGETHER = 200  # attempts in one process, while all end as they may
MOST_NOISE = 1 << 20  # bytes that are looked at
LONGEST = 3000  # characters of a sentence


class Outcome(NamedTuple):
    """How an attempt ended."""

    kind: str
    """"answer", "sentence", or what must not be: "traceback", "crash", "hang", "noise"."""
    text: str
    """What it said."""

    @property
    def right(self) -> bool:
        """Whether a user may see this."""
        return self.kind in ("answer", "sentence")


def attempt(action: Callable[[], None]) -> Outcome:
    """How one action ends, in a process of its own."""
    ((_, outcome),) = attempts(lambda number: action(), (0,))
    return outcome


def attempts(
    action: Callable[[int], None], numbers: Iterable[int], until: float = inf
) -> Iterator[tuple[int, Outcome]]:
    """How `action` ends for each of the numbers, until a moment of the monotonic clock. They run in a
    forked process: the same for many of them, and another after one that ends as it must not. A
    crash, a hang or much memory costs nothing here."""
    waiting: deque[int] = deque()
    numbers = iter(numbers)
    while time.monotonic() < until:
        waiting = waiting or deque(islice(numbers, TOGETHER))
        if not waiting:
            break
        for outcome in _together(action, list(waiting), until):
            yield waiting.popleft(), outcome


def _together(action: Callable[[int], None], numbers: list[int], until: float) -> Iterator[Outcome]:
    """The outcomes in one process, until one is wrong, or the time is over."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        _child(action, numbers, until, writing)
    os.close(writing)
    told = 0
    with os.fdopen(reading, "rb") as pipe:
        for line in pipe:
            told += 1
            yield Outcome(*json.loads(line))
    status = os.waitpid(process, 0)[1]
    if os.WIFSIGNALED(status) and told < len(numbers):
        yield _ended_by(os.WTERMSIG(status))
    elif status and not told:
        raise RuntimeError(f"the process of the attempts ended with {status}")


def _child(action: Callable[[int], None], numbers: list[int], until: float, writing: int) -> None:
    """Never returns. Tells each outcome, and ends after one that is wrong."""
    try:
        with tempfile.TemporaryFile() as printed:
            for number in (1, 2):
                os.dup2(printed.fileno(), number)
            warnings.simplefilter("always")
            _limit()
            read = 0
            for number in numbers:
                signal.alarm(SECONDS)
                status, text = _ending(action, number)
                signal.alarm(0)
                sys.stdout.flush()
                sys.stderr.flush()
                noise = os.pread(printed.fileno(), MOST_NOISE, read).decode("utf-8", "replace")
                read = os.fstat(printed.fileno()).st_size
                outcome = _judged(status, text, noise)
                os.write(writing, json.dumps(outcome).encode() + b"\n")
                if not outcome.right or time.monotonic() > until:
                    break
        os._exit(0)
    finally:
        os._exit(1)


def _ending(action: Callable[[int], None], number: int) -> tuple[str, str]:
    """How an action ends: "answer", "sentence" or "traceback", and what it says."""
    try:
        action(number)
        return "answer", ""
    except VitkitError as error:
        return "sentence", printable(str(error))  # as the command line does
    except OSError as error:
        if not error.errno and not error.filename:  # of a library, on its own
            return "traceback", traceback.format_exc()
        return "sentence", printable(str(error))
    except BaseException:  # a bug: the command line shows its traceback
        return "traceback", traceback.format_exc()


def _limit() -> None:
    """Limits of memory, and of time for each attempt, on this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _ended_by(number: int) -> Outcome:
    """An attempt whose process a signal ended."""
    if number == signal.SIGALRM:
        return Outcome("hang", f"longer than {SECONDS} s")
    return Outcome("crash", signal.Signals(number).name)


def _judged(ending: str, text: str, noise: str) -> Outcome:
    """What an ending, and what was said and printed, amount to."""
    if ending == "traceback":
        return Outcome("traceback", text)
    for mark in ("Traceback", "Exception ignored", "Warning:", "\x1b[2J"):
        if mark in noise:
            return Outcome("noise", noise)
    if ending == "answer":
        return Outcome("answer", text)
    if not 10 < len(text) <= LONGEST or "\x1b" in text or "\n\n" in text:
        return Outcome(
            "noise", f"no sentence for people ({len(text):,} characters): {text[:300]!r}"
        )
    return Outcome("sentence", text)
