"""What a terminal shows of answers as they come: a table, row by row, and a line that counts."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from vitkit.prediction.predictions import LIKELY, Prediction
from vitkit.system.console.messages import bars_are_shown, progress_of
from vitkit.system.console.progress import PATIENCE
from vitkit.system.console.text import counted, printable, terminal_width
from vitkit.weights import Activation

# The table

WIDEST = 28  # columns of a class's name on a terminal
WIDEST_ELSEWHERE = 80  # columns of a name that the others are aligned with
LEAST = 0.001  # probability of another class that is named
UNKNOWN = "unknown ({}?)"  # an image that is, with the class that is the least unlikely
OTHERS = "other classes"
GAP = "  "
DOTS = "..."


class AnswerTable:
    """Rows of predictions in columns. On a terminal they fit its width, and every page has a heading;
    elsewhere all of a text is there, whatever its length, and one heading."""

    def __init__(
        self, labels: Sequence[str], activation: Activation, stream: TextIO, page: int = 0
    ):
        """page: rows after which there is another heading on a terminal; 0 is never."""
        self.activation = activation
        self.stream = stream
        self.page = page
        self.on_terminal = stream.isatty()
        self.rows = 0
        # Among thousands of names of classes, one may be very long
        longest = max((cell_len(_line(label)) for label in labels), default=0)
        widest = WIDEST if self.on_terminal else WIDEST_ELSEWHERE
        self.first_width = max(len("class"), min(longest, widest))
        self.image_width = 0  # is known with the first images

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
        """Columns of an image's name at most: of a terminal, what leaves some for other classes."""
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
        """A line: the class, its probability, the image, and the most likely other classes. Those that the
        image may be as well begin with "or"."""
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
            if label in unnamed and value >= LIKELY:
                unnamed.remove(label)
                other = f"or {other}"
            others.append(other)
        if (
            unnamed
        ):  # open because few images of them were learned from, or beyond those that are listed
            others.append(f"or {len(unnamed):,} more")
        probability = number(prediction.probabilities[0], self.activation)
        image = _line(prediction.name)
        return self._aligned(_line(name), probability, image, ", ".join(others))

    def _aligned(self, first: str, probability: str, image: str, others: str) -> str:
        """The texts of a row, each in its column."""
        first = self._fitted(first, self.first_width)
        image = self._fitted(image, self.image_width, keep_end=True)
        line = GAP.join([first, f"{probability:>{len('probability')}}", image])
        if self.on_terminal:
            space = terminal_width() - cell_len(line) - len(GAP)
            others = self._fitted(others, max(space, 0)).rstrip()
        return f"{line}{GAP}{others}"

    def _fitted(self, text: str, width: int, keep_end: bool = False) -> str:
        """The text at this width: filled up, and on a terminal cut, its end or its beginning."""
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
    """A probability as 12.3%, an output that is not a probability as 1.234."""
    if activation == "none":
        return f"{value:.4g}"
    return f"{value:.1%}"


def _line(text: str) -> str:
    """A name of a class or a file as one line that can be shown."""
    return printable(text).replace("\n", "\\n")


# The line that counts

OFTEN = 0.2  # seconds between two lines on a terminal
SELDOM = 30.0  # and in a log
ERASE = "\r\x1b[K"  # to the beginning of the line, and all of it away


class ImageCounter:
    """Counts images, and shows how many there are in a second: on a terminal as a line that stays in
    its place, elsewhere as a line every half a minute. A listener of the call is told instead, with 0
    for a total that nobody knows."""

    def __init__(self, total: int | None, stream: TextIO | None = None):
        """total: how many images there will be; None if that is not known."""
        self.total = total
        self.stream = stream or sys.stderr
        self.on_terminal = self.stream is not None and self.stream.isatty()
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
        """Count this many more images, some of which were unreadable. Shows the line, if it is
        time."""
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
        """Take the line away, as something else is going to be printed."""
        if self.is_shown:
            self.stream.write(ERASE)
            self.stream.flush()
            self.is_shown = False

    def summary(self) -> str:
        """The number of images and the time that they took, in half a sentence."""
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
