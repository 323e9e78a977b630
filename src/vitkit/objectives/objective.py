"""What an objective is: settings, and the module that a run trains for them. The loop cannot tell
which one it runs.

A new objective is one file: a frozen dataclass with the methods of `Objective`, and a Learner. A
recipe names it, and nothing else needs to know of it, wherever the file lies.

What is random in a forward pass is drawn from `keys`, one integer an example that is a function of
(seed, step, place in the batch): micro-batches and ranks then change nothing.

Legend: B batch, C channels, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from vitkit.data import Preprocessing, Source, Target
from vitkit.evaluate import Evaluator
from vitkit.weights.classifier import Activation


class Learner(nn.Module):
    """What a run trains: the model, by this name, and what its objective adds. Its forward pass
    gives a loss:

    (images (B, C, H, W) normalised, targets as a Batch has them, keys int64 (B,)) -> float32 (), a
    mean over B.
    """

    model: nn.Module

    def prepare(self, train: Source) -> None:
        """Called once, before the first update, with the images that it will be trained on."""

    def before(self, step: int, total: int) -> None:
        """Called before the update that follows `step` finished ones, of `total`."""

    def updated(self, step: int, total: int) -> None:
        """Called after update `step` of `total`."""

    @contextmanager
    def deployed(self) -> Iterator[None]:
        """Within it the model is what will be saved: it is measured so. What is trained comes back
        after."""
        yield

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """(B, 3, H, W) normalised, (B,) -> uint8 pictures of that shape, by what they show, for the
        report."""
        return {}


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass of settings that says what a step minimises."""

    def head(self, target: Target, classes: int) -> int:
        """How many outputs the model's head has for images with such targets, of so many classes; 0
        is no head.

        Raises ValueError for targets that cannot be learned.
        """

    def activation(self) -> Activation:
        """How the trained model's outputs become probabilities."""

    def evaluators(self, target: Target) -> tuple[Evaluator, ...]:
        """What measures a run on held-out images with such targets, where the recipe does not say;
        may be none."""

    def learner(self, model: nn.Module, preprocessing: Preprocessing) -> Learner:
        """The module that is trained. Raises ValueError for a model that cannot be."""
