"""The table of answers, row by row as the answers come."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len, set_cell_size

from vitkit.system.console.terminal import terminal_width
from vitkit.system.console.text import printable

if TYPE_CHECKING:
    from vitkit.prediction import Prediction
    from vitkit.weights import Activation

WIDEST = 28  # columns of a class's name on a terminal
WIDEST_ELSEWHERE = 80  # columns of a name that the others are aligned with
LEAST = 0.001  # probability of another class that is named
UNKNOWN = "unknown ({}?)"  # an image that is, with the class that is the least unlikely
NAMED = 2  # classes that an answer leaves open
GAP = "  "
DOTS = "..."


class AnswerTable:
    """Rows of predictions in columns. On a terminal they fit its width, and every page has a heading;
    elsewhere all of a text is there, whatever its length, and one heading."""

    def __init__(
        self, labels: Sequence[str], activation: "Activation", stream: TextIO, page: int = 0
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
        self.first_width = max(len("prediction"), min(longest, widest))
        self.image_width = 0  # is known with the first images

    def print(self, predictions: "Sequence[Prediction]") -> None:
        """Print a row for each prediction that is no error."""
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
        texts = self._aligned("prediction", number, "image", "next")
        ruler = self._aligned(
            "-" * self.first_width, "-" * len("probability"), "-" * self.image_width, "----"
        )
        if self.rows:
            return ["", texts, ruler]
        return [texts, ruler]

    def _row(self, prediction: "Prediction") -> str:
        name = _answer(prediction)
        if prediction.truth not in (None, prediction.labels[0]):
            name += f" (is {prediction.truth})"
        others = []
        for label, value in zip(prediction.labels[1:], prediction.probabilities[1:], strict=True):
            if self.activation == "none" or value >= LEAST:
                others.append(f"{_line(label)} {number(value, self.activation)}")
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


def number(value: float, activation: "Activation") -> str:
    """A probability as 12.3%, an output that is no probability as 1.234."""
    if activation == "none":
        return f"{value:.4g}"
    return f"{value:.1%}"


def _answer(prediction: "Prediction") -> str:
    """The likeliest class; the two likeliest, if the answer leaves several open; or that the image is
    unknown."""
    first = prediction.labels[0]
    if prediction.unknown:
        return UNKNOWN.format(first)
    possible = prediction.possible or (first,)
    answer = " or ".join(possible[:NAMED])
    if len(possible) > NAMED:
        answer += f" or {len(possible) - NAMED} more"
    return answer


def _line(text: str) -> str:
    """A name of a class or a file as one line that can be shown."""
    return printable(text).replace("\n", "\\n")
