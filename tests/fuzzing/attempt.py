"""One attempt in a process of its own, within limits: what it says, and how it ends."""

import contextlib
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vitkit.system.console.text import printable

SECONDS = 20  # that an attempt may take; the files are small
MEMORY = 2 << 30  # bytes beyond what the process begins with
LONGEST = 3000  # characters of a sentence
REFUSALS = (ValueError, OSError, FloatingPointError)  # what the command line turns into a sentence


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
    """Run `action` in a forked process. A crash, a hang or much memory costs nothing here."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as printed:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if not process:
            _child(action, said, printed)
        status = os.waitpid(process, 0)[1]
        said.seek(0)
        printed.seek(0)
        text = printable(said.read().decode("utf-8", "replace"))  # as the command line does
        noise = printed.read().decode("utf-8", "replace")
    return _judged(status, text, noise)


def _child(action: Callable[[], None], said, printed) -> None:
    """Never returns. The exit status is 0 for an answer, 1 for a sentence, 2 for a traceback."""
    status = 2
    try:
        for number in (1, 2):
            os.dup2(printed.fileno(), number)
        warnings.simplefilter("default")
        _limit()
        try:
            action()
            status = 0
        except REFUSALS as error:
            said.write(str(error).encode("utf-8", "replace"))
            status = 1
        except BaseException:
            said.write(traceback.format_exc().encode("utf-8", "replace"))
        said.flush()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _limit() -> None:
    """Limits of time and memory on this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)


def _judged(status: int, text: str, noise: str) -> Outcome:
    """What an exit status and what was said and printed amount to."""
    with contextlib.suppress(ValueError):
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if signal_number == signal.SIGALRM:
        return Outcome("hang", f"longer than {SECONDS} s")
    if signal_number:
        return Outcome("crash", signal.Signals(signal_number).name)
    code = os.WEXITSTATUS(status)
    if code == 2:
        return Outcome("traceback", text)
    for mark in ("Traceback", "Exception ignored", "Warning:", "\x1b[2J"):
        if mark in noise:
            return Outcome("noise", noise)
    if code == 0:
        return Outcome("answer", text)
    if not 10 < len(text) <= LONGEST or "\x1b" in text or "\n\n" in text:
        return Outcome(
            "noise", f"no sentence for people ({len(text):,} characters): {text[:300]!r}"
        )
    return Outcome("sentence", text)
