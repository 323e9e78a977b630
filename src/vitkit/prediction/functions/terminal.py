"""Predictions on a terminal: a table that grows row by row, and a progress line."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from vitkit.prediction.predictions import Prediction
from vitkit.system.console.messages import bars_are_shown, progress_of
from vitkit.system.console.progress import PATIENCE
from vitkit.system.console.text import counted, printable, terminal_width
from vitkit.weights import Activation

# The table

WIDEST = 28  # largest width of the class column on a terminal
WIDEST_ELSEWHERE = 80  # largest width of an aligned column elsewhere
LEAST = 0.001  # lowest probability of another class that is listed
UNKNOWN = "unknown ({}?)"  # an out-of-distribution image, with its most likely class
OTHERS = "other classes"
GAP = "  "
DOTS = "..."


class AnswerTable:
    """Rows of predictions in columns. On a terminal they are cut to its width, and every page has a
    heading; elsewhere texts are complete and there is one heading."""

    def __init__(
        self, labels: Sequence[str], activation: Activation, stream: TextIO, page: int = 0
    ):
        """page: number of rows after which a terminal gets another heading; 0 for one heading only."""
        self.activation = activation
        self.stream = stream
        self.page = page
        self.on_terminal = stream.isatty()
        self.rows = 0
        # One of thousands of class names may be very long
        longest = max((cell_len(_line(label)) for label in labels), default=0)
        widest = WIDEST if self.on_terminal else WIDEST_ELSEWHERE
        self.first_width = max(len("class"), min(longest, widest))
        self.image_width = 0  # set from the first images

    def print(self, predictions: Sequence[Prediction]) -> None:
        """Print a row for each prediction that is not an error."""
        good = [prediction for prediction in predictions if prediction.error is None]
        if not good:
            return
        if not self.image_width:
            longest = max(cell_len(_line(prediction.name)) for prediction in good)
            if any(prediction.truth is not None for prediction in good):
                self.first_width += len(" (is )") + self.first_width // 2
            if any(prediction.unknown is not None for prediction in good):
                self.first_width += len(UNKNOWN)
            self.image_width = max(len("image"), min(longest, self._widest_image()))
        lines = []
        for prediction in good:
            if self.rows == 0 or (self.page and self.on_terminal and self.rows % self.page == 0):
                lines += self._heading()
            lines.append(self._row(prediction))
            self.rows += 1
        self.stream.write("".join(f"{line.rstrip()}\n" for line in lines))
        self.stream.flush()

    def _widest_image(self) -> int:
        """Largest width of the image column: a terminal keeps some space for other classes."""
        if not self.on_terminal:
            return WIDEST_ELSEWHERE
        return max(20, terminal_width() - self.first_width - len("probability") - 20)

    def _heading(self) -> list[str]:
        number = "probability"
        if self.activation == "none":
            number = "value"
        texts = self._aligned("class", number, "image", OTHERS)
        widths = (self.first_width, len("probability"), self.image_width, len(OTHERS))
        ruler = self._aligned(*("-" * width for width in widths))
        if self.rows:
            return ["", texts, ruler]
        return [texts, ruler]

    def _row(self, prediction: Prediction) -> str:
        """A row of the table: the class, its probability, the image, and the most likely other classes.
        Classes of the prediction set begin with "or"."""
        name = prediction.labels[0]
        if prediction.unknown:
            name = UNKNOWN.format(name)
        if prediction.truth not in (None, prediction.labels[0]):
            name += f" (is {prediction.truth})"
        unnamed = set(prediction.possible or ()) - {prediction.labels[0]}
        others = []
        for label, value in zip(prediction.labels[1:], prediction.probabilities[1:], strict=True):
            if self.activation != "none" and value < LEAST:
                continue
            other = f"{_line(label)} {number(value, self.activation)}"
            if label in unnamed:
                unnamed.remove(label)
                other = f"or {other}"
            others.append(other)
        if unnamed:  # beyond the listed classes
            others.append(f"or {len(unnamed):,} more")
        probability = number(prediction.probabilities[0], self.activation)
        image = _line(prediction.name)
        return self._aligned(_line(name), probability, image, ", ".join(others))

    def _aligned(self, first: str, probability: str, image: str, others: str) -> str:
        """The cells of a row, each padded to its column."""
        first = self._fitted(first, self.first_width)
        image = self._fitted(image, self.image_width, keep_end=True)
        line = GAP.join([first, f"{probability:>{len('probability')}}", image])
        if self.on_terminal:
            space = terminal_width() - cell_len(line) - len(GAP)
            others = self._fitted(others, max(space, 0)).rstrip()
        return f"{line}{GAP}{others}"

    def _fitted(self, text: str, width: int, keep_end: bool = False) -> str:
        """The text padded to this width; on a terminal also cut: at the end, or at the start with
        keep_end."""
        length = cell_len(text)
        if length <= width or not self.on_terminal:
            return text + " " * max(0, width - length)
        if width <= len(DOTS):
            return DOTS[:width]
        if keep_end:
            reversed_end = set_cell_size(text[::-1], width - len(DOTS))
            return DOTS + reversed_end[::-1]
        return set_cell_size(text, width - len(DOTS)) + DOTS


def number(value: float, activation: Activation) -> str:
    """A probability as 12.3%, any other output as 1.234."""
    if activation == "none":
        return f"{value:.4g}"
    return f"{value:.1%}"


def _line(text: str) -> str:
    """A class name or file name as a single printable line."""
    return printable(text).replace("\n", "\\n")


# The progress line

OFTEN = 0.2  # seconds between two updates on a terminal
SELDOM = 30.0  # seconds between two lines in a log
ERASE = "\r\x1b[K"  # move to the beginning of the line and clear it


class ImageCounter:
    """Counts images and shows the throughput: on a terminal as a line that is updated in place,
    elsewhere as a line every half a minute. If the call has a progress callback, the callback is called
    instead, with 0 for an unknown total."""

    def __init__(self, total: int | None, stream: TextIO | None = None):
        """total: number of images; None if unknown."""
        self.total = total
        self.stream = stream or sys.stderr
        self.on_terminal = self.stream is not None and self.stream.isatty()
        self.done = 0
        self.unreadable = 0
        self.began = time.monotonic()
        self.busy = 0.0
        """Seconds until the last image was done; excludes waiting for the next one."""
        self.next_line = self.began + PATIENCE
        if bars_are_shown() and not self.on_terminal:
            self.next_line = self.began + SELDOM
        self.is_shown = False
        self.done_in_log = 0
        """Number of images in the last log line; a line with the same number is not repeated."""

    def count(self, images: int, unreadable: int) -> None:
        """Add to the numbers of images and of unreadable ones, and update the line if it is due."""
        self.done += images
        self.unreadable += unreadable
        now = time.monotonic()
        if images:
            self.busy = now - self.began
        if not self.done or now < self.next_line or self.stream is None:
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
        """Clear the line before other output is printed."""
        if self.is_shown:
            self.stream.write(ERASE)
            self.stream.flush()
            self.is_shown = False

    def summary(self) -> str:
        """The number of images and the time that they took, as part of a sentence."""
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
    """A duration as text: 12.3 s, or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02} min"
