"""Progress bars on the terminal, for work that takes longer than a moment."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds before there is a bar

Shown = Callable[[Iterable, int], Iterable]  # (items, how many) -> the same items


def silent(items: Iterable, total: int) -> Iterable:
    """The same items, without a bar."""
    return items


def bar(text: str) -> Shown:
    """A function (items, total) -> the same items; a bar appears once they have taken PATIENCE."""

    def shown(items: Iterable, total: int) -> Iterator:
        began = time.monotonic()
        done = 0
        items = iter(items)

        # Without a bar, until there is need for one
        for item in items:
            yield item
            done += 1
            if time.monotonic() - began > PATIENCE and done < total:
                break
        else:
            return

        # The remaining items under a bar. rich takes a while to import: only here
        from rich.console import Console
        from rich.progress import track

        yield from track(items, text, total, done, console=Console(stderr=True), transient=True)

    return shown


@contextmanager
def counted(text: str, total: int, count: Callable[[], int]) -> Iterator[None]:
    """A bar of work that other processes do while this block runs; it appears after PATIENCE.

    count() tells how much of `total` is done.
    """
    ended = threading.Event()

    def show() -> None:
        if ended.wait(PATIENCE):  # the work was quick
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as progress:
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
