"""Messages and progress while work goes on.

Messages go to the loggers "vitkit.*" of Python's logging: INFO for what happens, WARNING for what may need
attention, ERROR for a bug in one part of the work. A handler prints them to the standard error, unless a
handler of the root logger prints to the terminal already. With `progress=FUNCTION` a call sends them to that
function instead, and with `quiet=True` nowhere.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vitkit.system.console.text import printable, printable_traceback
from vitkit.system.errors import VitkitError
from vitkit.system.storage.addresses import without_credentials

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


class Printing(logging.Handler):
    """Prints what vitkit says to the standard error, or to the output of a command that narrates. It is
    silent where a handler of the program's own prints the same."""

    def emit(self, record: logging.LogRecord) -> None:
        if _root_prints():
            return
        stream = sys.stderr
        if _listener.get() is to_standard_output:
            stream = sys.stdout
        try:
            if record.exc_info and record.exc_info[1]:  # there is none outside of `except`
                print(printable_traceback(record.exc_info[1]), file=stream)
            print(printable(_spelling.get()(record.getMessage())), file=stream, flush=True)
        except BrokenPipeError:
            raise
        except Exception:  # as every handler of the standard library does
            self.handleError(record)


def _root_prints() -> bool:
    """Whether the program's own root handler prints to the terminal: then it prints vitkit's records too."""
    if _is_command():
        return False
    terminals = (sys.stdout, sys.stderr)
    return any(getattr(each, "stream", None) in terminals for each in logging.getLogger().handlers)


@cache
def _logger() -> logging.Logger:
    """The logger "vitkit", which gets its handler, and a level if the program has set none."""
    logger = logging.getLogger("vitkit")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.addHandler(Printing())
    return logger


def to_log(told: str | Progress, level: int = logging.INFO) -> None:
    """The listener of a program that named none: the logger of the module that says it. Progress has a
    bar of its own."""
    if isinstance(told, str):
        # A command prints in its own form, whatever handlers a library gives the root logger
        _logger().propagate = not _is_command()
        depth, module = _speaker()
        told = without_credentials(told)  # a program's handlers write it to files
        logging.getLogger(module).log(level, "%s", told, stacklevel=depth)


def to_standard_output(told: str | Progress, level: int = logging.INFO) -> None:
    """The listener of a command whose output is what it says, as of a run."""
    to_log(told, level)


def _speaker() -> tuple[int, str]:
    """How many frames above `to_log` the module stands that speaks, and its name."""
    depth = 1
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
        depth += 1
    module = frame.f_globals.get("__name__", "vitkit")
    if not module.startswith("vitkit"):
        module = "vitkit"
    return depth, module


def to_nobody(told: str | Progress) -> None:
    """The listener of a call that is to be quiet."""


_listener: ContextVar[Listener] = ContextVar("listener", default=to_log)


def is_first() -> bool:
    """Whether this is the process that prints and writes: rank 0 of its run, or of the one that has just
    ended, or a process that runs alone. One that never joined others need not import what joins them."""
    ranks = sys.modules.get("vitkit.system.processes.ranks")
    return ranks is None or ranks.was_rank_0()


def say(sentence: str, level: int = logging.INFO) -> None:
    """Send a sentence to whoever listens; with several ranks, only rank 0 sends it."""
    if not is_first():
        return
    listener = _listener.get()
    if listener in (to_log, to_standard_output):
        listener(sentence, level)
    else:
        listener(sentence)


def log_bug(what: str) -> None:
    """Within an `except`: log the traceback of a bug in one part of the work, which goes on."""
    _logger().error("%s", what, exc_info=True)


def reason(error: BaseException) -> str:
    """An error in one line: its message; of a bug, which kind it is and where."""
    message = (str(error).splitlines() or [""])[0]
    if isinstance(error, (VitkitError, OSError)):
        return message or type(error).__name__
    where = ""
    trace = error.__traceback__
    if trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        where = f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
    return f"{type(error).__name__}: {message}{where}"


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
    if listener in (to_log, to_standard_output):
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


def say_on(console: "Console | None") -> Callable[[str], None]:
    """What says a sentence on a console of rich's, or without one to whoever listens."""
    if console is None:
        return say

    def print_there(sentence: str) -> None:
        text = printable(_spelling.get()(sentence))
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    return print_there


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


_spelling: ContextVar[Callable[[str], str]] = ContextVar("spelling", default=str)


def _is_command() -> bool:
    """Whether the command line is running, which writes settings as options."""
    return _spelling.get() is not str


def spelled(spelling: Callable[[str], str]) -> AbstractContextManager[None]:
    """A block in which messages are printed as this function spells them: the command line writes
    settings as options."""
    return _within(_spelling, spelling)


def as_spelled(message: str) -> str:
    """A message as it is printed here, for one that is shown elsewhere, such as on a page."""
    return _spelling.get()(message)


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
