"""Messages and progress of running work.

Messages go to the loggers "vitkit.*" of Python's logging: INFO for events, WARNING for possible problems,
ERROR for a bug in one part of the work. A handler prints them to the standard error, unless a handler of the
root logger already prints to the terminal. With `progress=FUNCTION` a call sends them to that function
instead, and with `quiet=True` nowhere.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
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

LINE = 120  # columns of a line for a listener


@dataclass(frozen=True)
class Progress:
    """The progress of a stage of the work."""

    stage: str
    """What is done, such as "computing features"."""
    done: int
    total: int


Listener = Callable[[str | Progress], None]


class Printing(logging.Handler):
    """Prints vitkit's messages to the standard error, or to the standard output for a command that narrates.
    Prints nothing where a handler of the program prints the same."""

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
    """Whether the program's root handler prints to the terminal, and so prints vitkit's records too."""
    if _is_command():
        return False
    terminals = (sys.stdout, sys.stderr)
    return any(getattr(each, "stream", None) in terminals for each in logging.getLogger().handlers)


@cache
def _logger() -> logging.Logger:
    """The logger "vitkit" with its handler, and with a level if the program has set none."""
    logger = logging.getLogger("vitkit")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.addHandler(Printing())
    return logger


def to_log(told: str | Progress, level: int = logging.INFO) -> None:
    """The listener of a program without a listener of its own: the logger of the module that sends the
    message. Progress is shown by a bar instead."""
    if isinstance(told, str):
        # A command prints in its own form, whatever handlers a library adds to the root logger
        _logger().propagate = not _is_command()
        depth, module = _calling_module()
        told = without_credentials(told)  # a program's handlers may write it to files
        logging.getLogger(module).log(level, "%s", told, stacklevel=depth)


def to_standard_output(told: str | Progress, level: int = logging.INFO) -> None:
    """The listener of a command whose output consists of messages, such as training."""
    to_log(told, level)


def _calling_module() -> tuple[int, str]:
    """The number of frames between `to_log` and the module that sends the message, and the module's name."""
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
    """The listener of a quiet call."""


_listener: ContextVar[Listener] = ContextVar("listener", default=to_log)


def is_first() -> bool:
    """Whether this process prints and writes: rank 0 of a run, the former rank 0 just after a run, or a single
    process. A process that never joined others does not import the module that joins them."""
    ranks = sys.modules.get("vitkit.system.processes.ranks")
    return ranks is None or ranks.was_rank_0()


_known: ContextVar[frozenset[str]] = ContextVar("known", default=frozenset())


def known(sentences: Iterable[str]) -> AbstractContextManager[None]:
    """A context in which these sentences are not sent again."""
    return _set_to(_known, _known.get() | frozenset(sentences))


def say(sentence: str, level: int = logging.INFO) -> None:
    """Send a message to the current listener; with several ranks, only rank 0 sends it."""
    if not is_first() or sentence in _known.get():
        return
    listener = _listener.get()
    if listener in (to_log, to_standard_output):
        listener(sentence, level)
    else:
        listener(sentence)


def log_bug(what: str) -> None:
    """Within an `except`: log the traceback of a bug in one part of the work, and continue."""
    _logger().error("%s", what, exc_info=True)


def reason(error: BaseException) -> str:
    """An error in one line: its message, or for a bug its type and place."""
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
    """Send a message that most users do not need, unless the current context is brief."""
    if _details.get():
        say(sentence)


def brief(is_brief: bool = True) -> AbstractContextManager[None]:
    """A context in which details are not sent."""
    return _set_to(_details, _details.get() and not is_brief)


def announce(sentence: str) -> None:
    """Send the purpose of a call that continues running, such as the address of a server. For a command it
    is output, because another program may wait for it."""
    output = live_output()
    if output is None:
        say(sentence)
    else:
        print(printable(sentence), file=output, flush=True)


def progress_of(stage: str, done: int, total: int) -> None:
    """Report the progress of a stage."""
    _listener.get()(Progress(stage, done, total))


def current_listener() -> Listener:
    """The current listener, for threads, which have contexts of their own."""
    return _listener.get()


def bars_are_shown(listener: Listener | None = None) -> bool:
    """Whether progress is shown as a bar, because the listener does not receive it."""
    listener = listener or _listener.get()
    if listener in (to_log, to_standard_output):
        return True
    return getattr(listener, "shows_bars", False)


def console_of_listener() -> "Console":
    """A rich console for tables and bars whose lines go to the current listener."""
    from rich.console import Console

    listener = _listener.get()
    if listener is to_standard_output:
        return Console()
    if bars_are_shown():
        return Console(stderr=True)
    return Console(file=_Lines(listener), width=LINE)


def say_on(console: "Console | None") -> Callable[[str], None]:
    """A function that prints a message on a rich console, or without one sends it to the current listener."""
    if console is None:
        return say

    def print_there(sentence: str) -> None:
        text = printable(_spelling.get()(sentence))
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    return print_there


class _Lines(StringIO):
    """A text file that sends its lines to a listener."""

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
"""A function of the program that gets the step of a run and its numbers by name."""

_callback: ContextVar[Callback | None] = ContextVar("callback", default=None)


def current_callback() -> Callback | None:
    """The function that gets the numbers of this call's runs; None if there is none."""
    return _callback.get()


def followed_by(callback: Callback | None) -> AbstractContextManager[None]:
    """A context whose runs report to a function."""
    return _set_to(_callback, callback)


_live: ContextVar[TextIO | None] = ContextVar("live", default=None)


def live_output() -> TextIO | None:
    """The stream for results as they come: the command line's standard output. None in a program, which gets
    results at the end."""
    return _live.get()


def printing_to(stream: TextIO) -> AbstractContextManager[None]:
    """A context whose results are printed to the stream as they come."""
    return _set_to(_live, stream)


_spelling: ContextVar[Callable[[str], str]] = ContextVar("spelling", default=str)


def _is_command() -> bool:
    """Whether the command line is running, which writes settings as options."""
    return _spelling.get() is not str


def spelled(spelling: Callable[[str], str]) -> AbstractContextManager[None]:
    """A context in which messages are printed as this function spells them: the command line writes
    settings as options."""
    return _set_to(_spelling, spelling)


def as_spelled(message: str) -> str:
    """A message as it would be printed here, for another place such as a page."""
    return _spelling.get()(message)


def heard_by(listener: Listener) -> AbstractContextManager[None]:
    """A context in which all messages and progress go to this listener."""
    return _set_to(_listener, listener)


@contextmanager
def _set_to(variable: ContextVar, value: Any) -> Iterator[None]:
    """A context in which a variable has this value."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)
