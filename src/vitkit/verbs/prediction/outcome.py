"""What came of answering images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.verbs.definition import result
from vitkit.verbs.prediction.table import AnswerTable

if TYPE_CHECKING:
    from vitkit.prediction import Prediction
    from vitkit.verbs.prediction.taking import Taking
    from vitkit.weights import Activation


@result
@dataclass(frozen=True)
class Predictions(Sequence):
    """A model's answers to images, in their order."""

    answers: "tuple[Prediction, ...]"
    """One for each image: its likeliest classes, or what is wrong with it."""
    labels: tuple[str, ...]
    """The model's classes."""
    activation: "Activation"
    unreadable: int
    """Images that could not be read."""
    path: Path | None
    """The file or the folder that the answers were written to."""
    notes: tuple[str, ...]
    """What was written, and what is next."""

    @classmethod
    def of(cls, taking: "Taking", path: Path | None, notes: tuple[str, ...]) -> "Predictions":
        """All that was taken."""
        runtime = taking.runtime
        kept = tuple(taking.kept)
        unreadable = taking.progress.unreadable
        return cls(kept, tuple(runtime.labels), runtime.activation, unreadable, path, notes)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, i):
        return self.answers[i]

    @property
    def status(self) -> int:
        """The exit status of the command: 1 if an image was broken."""
        return int(self.unreadable > 0)

    def rows(self) -> list[dict]:
        """A row for each image: its name, its likeliest class with the probability, all that were
        named, and what is wrong with it."""
        rows = []
        for answer in self.answers:
            rows.append(
                {
                    "image": answer.name,
                    "class": answer.labels[0] if answer.labels else None,
                    "probability": answer.probabilities[0] if answer.probabilities else None,
                    "classes": answer.labels,
                    "probabilities": answer.probabilities,
                    "error": answer.error,
                }
            )
        return rows

    def shown(self) -> Iterator[str]:
        """A table, which the command line has printed already; and what was written."""
        if self.answers:
            text = StringIO()
            AnswerTable(self.labels, self.activation, text).print(self.answers)
            yield text.getvalue().rstrip("\n")
        yield from self.notes
