"""What is said while work goes on: sentences and progress, to whoever listens.

A library does not print. What it has to tell goes to the listener of the call: the command line prints
it, a program may take it, and by default it goes to the standard error, where results do not.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

from vitkit.system.console.text import printable

if TYPE_CHECKING:
    from rich.console import Console

LINE = 120  # columns of a line that a listener is told


@dataclass(frozen=True)
class Progress:
    """The progress of a stage of the work."""

    stage: str
    """What is done, such as "computing features"."""
    done: int
    total: int


Listener = Callable[[str | Progress], None]


def to_standard_error(told: str | Progress) -> None:
    """The listener of a program that named none. Progress has a bar of its own there."""
    if isinstance(told, str):
        print(printable(told), file=sys.stderr, flush=True)


def to_standard_output(told: str | Progress) -> None:
    """The listener of the command line."""
    if isinstance(told, str):
        print(printable(told), flush=True)


def to_nobody(told: str | Progress) -> None:
    """The listener of a call that is to be quiet."""


_listener: ContextVar[Listener] = ContextVar("listener", default=to_standard_error)


def is_first() -> bool:
    """Whether this is the process that prints and writes: rank 0 of its run, or of the one that has just
    ended, or a process that runs alone. One that never joined others need not import what joins them."""
    ranks = sys.modules.get("vitkit.system.processes.ranks")
    return ranks is None or ranks.was_rank_0()


def say(sentence: str) -> None:
    """Send a sentence to the listener; with several ranks, only rank 0 sends it."""
    if is_first():
        _listener.get()(sentence)


_details: ContextVar[bool] = ContextVar("details", default=True)


def say_detail(sentence: str) -> None:
    """Tell a sentence that most users do not need, unless the current block should be brief."""
    if _details.get():
        say(sentence)


def brief(is_brief: bool = True) -> AbstractContextManager[None]:
    """A block in which details are not told."""
    return _within(_details, _details.get() and not is_brief)


def announce(sentence: str) -> None:
    """Tell what a call that goes on was made for, such as the address of a server: of a command it is
    the output, which another program may wait for."""
    output = live_output()
    if output is None:
        say(sentence)
    else:
        print(printable(sentence), file=output, flush=True)


def progress_of(stage: str, done: int, total: int) -> None:
    """Report the progress of a stage."""
    _listener.get()(Progress(stage, done, total))


def current_listener() -> Listener:
    """Who is told, for a thread to tell it: each has a context of its own."""
    return _listener.get()


def bars_are_shown(listener: Listener | None = None) -> bool:
    """Whether progress is shown as a bar, because no listener takes it."""
    listener = listener or _listener.get()
    if listener in (to_standard_error, to_standard_output):
        return True
    return getattr(listener, "shows_bars", False)


def console_of_listener() -> "Console":
    """A console of rich, for tables and bars, whose lines go to whoever listens."""
    from rich.console import Console

    listener = _listener.get()
    if listener is to_standard_output:
        return Console()
    if bars_are_shown():
        return Console(stderr=True)
    return Console(file=_Lines(listener), width=LINE)


class _Lines(StringIO):
    """A text file whose lines go to a listener."""

    def __init__(self, listener: Listener):
        super().__init__()
        self.listener = listener
        self.begun = ""

    def write(self, text: str) -> int:
        *lines, self.begun = (self.begun + text).split("\n")
        for line in lines:
            self.listener(line.rstrip())
        return len(text)


Callback = Callable[[int, dict[str, float]], object]
"""A function of the program that follows a run: of the step and its numbers, by name."""

_callback: ContextVar[Callback | None] = ContextVar("callback", default=None)


def current_callback() -> Callback | None:
    """The function that follows the runs of this call; None if there is none."""
    return _callback.get()


def followed_by(callback: Callback | None) -> AbstractContextManager[None]:
    """A block whose runs a function follows."""
    return _within(_callback, callback)


_live: ContextVar[TextIO | None] = ContextVar("live", default=None)


def live_output() -> TextIO | None:
    """Where results are printed as they come: the command line's standard output. None in a program,
    which gets them at the end."""
    return _live.get()


def printing_to(stream: TextIO) -> AbstractContextManager[None]:
    """A block whose results are printed there as they come."""
    return _within(_live, stream)


def heard_by(listener: Listener) -> AbstractContextManager[None]:
    """A block in which a listener is told everything."""
    return _within(_listener, listener)


@contextmanager
def _within(variable: ContextVar, value: Any) -> Iterator[None]:
    """A block in which a variable has this value."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)
