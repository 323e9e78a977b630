"""How far the answers are: one line on the standard error, which results do not pass through."""

import sys
import time
from typing import TextIO

from vitkit.system.console.progress import PATIENCE
from vitkit.system.console.saying import bars_are_shown, progress_of
from vitkit.system.console.terminal import terminal_width
from vitkit.system.console.text import counted

OFTEN = 0.2  # seconds between two lines on a terminal
SELDOM = 30.0  # and in a log
ERASE = "\r\x1b[K"  # to the beginning of the line, and all of it away


class Progress:
    """Counts images, and shows how many there are in a second: on a terminal as a line that stays in
    its place, elsewhere as a line every half a minute. A listener of the call is told instead, with 0
    for a total that nobody knows."""

    def __init__(self, total: int | None, stream: TextIO | None = None):
        """total: images there will be; None if nobody knows."""
        self.total = total
        self.stream = stream or sys.stderr
        self.on_terminal = self.stream.isatty()
        self.done = 0
        self.unreadable = 0
        self.began = time.monotonic()
        self.busy = 0.0
        """Seconds until the last image was done: waiting for one more does not count."""
        self.next_line = self.began + PATIENCE
        if bars_are_shown() and not self.on_terminal:
            self.next_line = self.began + SELDOM
        self.is_shown = False
        self.done_in_log = 0
        """Images that the last line in a log told of: one that tells the same is none."""

    def count(self, images: int, unreadable: int) -> None:
        """So many more are done, some of which were unreadable. Shows the line, if it is time."""
        self.done += images
        self.unreadable += unreadable
        now = time.monotonic()
        if images:
            self.busy = now - self.began
        if not self.done or now < self.next_line:
            return
        if not bars_are_shown():
            self.next_line = now + OFTEN
            progress_of("answering", self.done, self.total or 0)
            return
        if self.on_terminal:
            self.next_line = now + OFTEN
            self.stream.write(ERASE + self._line()[: terminal_width() - 1])
            self.is_shown = True
        elif self.done > self.done_in_log:
            self.next_line = now + SELDOM
            self.done_in_log = self.done
            self.stream.write(self._line() + "\n")
        self.stream.flush()

    def wipe(self) -> None:
        """Take the line away, as something else is going to be printed."""
        if self.is_shown:
            self.stream.write(ERASE)
            self.stream.flush()
            self.is_shown = False

    def summary(self) -> str:
        """What was done in which time, in half a sentence."""
        text = counted(self.done, "image")
        if self.done > 1 and self.busy > 0:
            text += f" in {_duration(self.busy)}: {_rate(self.done / self.busy)}"
        if self.unreadable:
            text += f"; {self.unreadable:,} not classified"
        return text

    def _line(self) -> str:
        rate = self.done / max(self.busy, 1e-3)
        text = counted(self.done, "image")
        if self.total is not None:
            text = f"{self.done:,} of {counted(self.total, 'image')}"
        text += f", {_rate(rate)}"
        if self.total is not None and rate > 0:
            text += f", {_duration((self.total - self.done) / rate)} left"
        if self.unreadable:
            text += f", {self.unreadable:,} unreadable"
        return text


def _rate(rate: float) -> str:
    if rate < 10:
        return f"{rate:.1f} a second"
    return f"{rate:,.0f} a second"


def _duration(seconds: float) -> str:
    """Seconds for people: 12.3 s, or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02} min"
