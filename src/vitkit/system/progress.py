"""Progress on the terminal, for what takes a while."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds before there is a bar

Shown = Callable[[Iterable, int], Iterable]  # (items, how many) -> the same items


def silent(items: Iterable, total: int) -> Iterable:
    """The same items, and nothing on the terminal."""
    return items


def bar(text: str) -> Shown:
    """A function (items, total) -> the same items, under a progress bar once they have taken a while."""

    def shown(items: Iterable, total: int) -> Iterator:
        began = time.monotonic()
        done = 0
        items = iter(items)
        for item in items:
            yield item
            done += 1
            if time.monotonic() - began > PATIENCE and done < total:
                break
        else:
            return
        from rich.console import Console
        from rich.progress import track

        yield from track(items, text, total, done, console=Console(stderr=True), transient=True)

    return shown


@contextmanager
def counted(text: str, total: int, count: Callable[[], int]) -> Iterator[None]:
    """A progress bar, once it has taken a while, of what other processes do; count() tells how much is done."""
    over = threading.Event()

    def show() -> None:
        if over.wait(PATIENCE):
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task(text, total=total)
            while not over.wait(0.2):
                shown.update(task, completed=count())

    shows = threading.Thread(target=show, daemon=True)
    shows.start()
    try:
        yield
    finally:
        over.set()
        shows.join()
