"""What is reached without a look at an image, and whether a model is better than that.

Legend: N images, K classes.
"""

from typing import NamedTuple

import numpy as np

from vitkit.evaluation import Metric, Probing

ERRORS = 2  # standard errors above a guess up to which chance explains an accuracy


class Guess(NamedTuple):
    """The best answer to images of one class each that needs no look."""

    value: float
    """The accuracy that it reaches; where classes count alike, the balanced one."""
    error: float
    """The standard error of what guesses reach on so many images."""
    words: str
    """What it is, and what it reaches."""

    def explains(self, metric: Metric) -> bool:
        """Whether a model that reaches this may know nothing. Of so few images that a model which is
        right on all of them may, nothing is said."""
        bound = self.value + ERRORS * self.error
        return bound < 1 and metric.value <= bound


def guess(asked: Probing, y: np.ndarray) -> Guess | None:
    """The best guess for images with these classes, (N,); None for other targets."""
    if asked.kind != "class":
        return None
    counts = np.bincount(y, minlength=len(asked.labels))
    if asked.balanced:
        present = counts[counts > 0]
        value = 1 / len(present)
        error = np.sqrt((value * (1 - value) / present).sum()) / len(present)
        return Guess(value, float(error), f"the same answer to all has {_percent(value)}")
    most = int(counts.argmax())
    value = counts[most] / len(y)
    error = np.sqrt(value * (1 - value) / len(y))
    words = f"always {asked.labels[most]} is right on {_percent(value)}"
    return Guess(float(value), float(error), words)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
