"""Progress of work that takes more than two seconds: a bar on a terminal, plain lines if the standard error
goes elsewhere, such as into a file."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from vitkit.system.console.messages import Progress, bars_are_shown, current_listener, progress_of

PATIENCE = 2.0  # seconds before a bar appears
FIRST_LINE = 5.0  # seconds before the first line if there is no terminal
BETWEEN_LINES = 30.0  # seconds between two lines

Shown = Callable[[Iterable, int], Iterable]  # (items, number of items) -> the same items


def silent(items: Iterable, total: int) -> Iterable:
    """Yield the items without a bar."""
    return items


def bar(text: str) -> Shown:
    """A function (items, total) -> the same items; a bar appears when they have taken PATIENCE."""

    def shown(items: Iterable, total: int) -> Iterator:
        began = time.monotonic()
        done = 0
        items = iter(items)

        # No bar before it is needed
        for item in items:
            yield item
            done += 1
            if time.monotonic() - began > PATIENCE and done < total:
                break
        else:
            return

        # The remaining items, reported to the listener, without an own bar, with lines, or with a bar
        if not bars_are_shown():
            yield from _reported(items, text, done, total)
        elif _is_shown_already():
            yield from items
        elif not _is_terminal():
            yield from _with_lines(items, text, done, total)
        else:
            # The import of rich takes time, so it is only here
            from rich.console import Console
            from rich.progress import track

            yield from track(items, text, total, done, console=Console(stderr=True), transient=True)

    return shown


@contextmanager
def counted(text: str, total: int, count: Callable[[], int]) -> Iterator[None]:
    """A bar of work that other processes do during this context; it appears after PATIENCE.

    count() returns the number of finished parts, of `total`.
    """
    ended = threading.Event()
    listener = current_listener()  # the new thread has another context
    listener_shows_bars = bars_are_shown()

    def show() -> None:
        if ended.wait(PATIENCE) or _is_shown_already():  # quick work needs no bar
            return
        if not listener_shows_bars:
            while not ended.wait(1.0):
                listener(Progress(text, count(), total))
            return
        began = time.monotonic()
        if not _is_terminal():
            while not ended.wait(BETWEEN_LINES):
                _print_line(text, count(), total, time.monotonic() - began)
            return
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(text, total=total)
            while not ended.wait(0.2):
                progress.update(task, completed=count())

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def working(text: str) -> Iterator[None]:
    """A context of unknown duration: a terminal shows that work is in progress."""
    if not (bars_are_shown() and _is_terminal()):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def _reported(items: Iterable, text: str, done: int, total: int) -> Iterator:
    """Yield the items, after `done` earlier ones, and report each to the listener."""
    for item in items:
        yield item
        done += 1
        progress_of(text, done, total)


def _with_lines(items: Iterable, text: str, done: int, total: int) -> Iterator:
    """Yield the items, after `done` earlier ones, and print a line about them from time to time."""
    began = time.monotonic()
    next_line = began + FIRST_LINE - PATIENCE
    first = done
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now > next_line and done < total:
            next_line = now + BETWEEN_LINES
            _print_line(text, done, total, (now - began) * done / (done - first))


def _print_line(text: str, done: int, total: int, seconds: float) -> None:
    """Print a line with the number of items that took these seconds, and the time that is left."""
    left = "just begun"
    if done:
        left = f"{seconds * (total - done) / done:,.0f} s left"
    print(f"{text}: {done:,} of {total:,}, {left}", file=sys.stderr, flush=True)


def _is_terminal() -> bool:
    """Whether the standard error is a terminal. A program may have no standard error at all."""
    return sys.stderr is not None and sys.stderr.isatty()


def _is_shown_already() -> bool:
    """Whether the terminal shows a rich bar already, such as a run's: two would overwrite each other. A
    visible bar replaces the standard error."""
    if "rich.file_proxy" not in sys.modules:
        return False
    from rich.file_proxy import FileProxy

    return isinstance(sys.stderr, FileProxy)
