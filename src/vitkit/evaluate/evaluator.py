"""What an evaluator is: a value with settings, and a method that measures a model on images.

A run measures itself by the evaluators of its recipe; an Eval says when each of them does, and on
which images. `vitkit evaluate` runs the same evaluators. A new one is one file: a frozen dataclass
with the two methods of `Evaluator`, whose `measure` reads the images with `collect`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from torch import nn

from vitkit.data import Batch, Columns, Source, TargetKind
from vitkit.evaluate.metric import Metric
from vitkit.system.span import Span
from vitkit.weights import Classifier


class Subject(NamedTuple):
    """The model that is measured, and what comes with it."""

    classifier: Classifier
    """The model on its device, with its preprocessing and the names of its classes."""
    learner: nn.Module | None = None
    """The learner that the model belongs to while it trains; None for a finished model."""


class Part(NamedTuple):
    """The images that a model is measured on."""

    source: Source
    """Where they are from: it says their kind of targets, and the names of their classes."""
    batches: Iterable[Batch]
    """Every image once, prepared for the model; of several ranks, each has its share of them."""


@runtime_checkable
class Evaluator(Protocol):
    """A frozen dataclass of settings that measures a model."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether it can measure on images with such targets."""

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields what the model reaches on the images. Runs are compared by the first metric.

        Raises ValueError for images that it cannot measure on, and for a model that it cannot
        measure.
        """


@dataclass(frozen=True)
class Eval:
    """An evaluator in a recipe: when it measures, and on which images."""

    evaluator: Evaluator
    """What measures."""
    every: Span | None = None
    """Time between two evaluations; None is the recipe's `evaluate_every`. There is always one at
    the end of the run."""
    data: str = ""
    """Images to measure on, written as `data.source` is; empty is what the run holds out."""
    columns: Columns = field(default_factory=Columns)
    """Which columns of the table of `data` hold the image and its label; by default found by their
    names."""

    @property
    def images(self) -> str:
        """What the names of metrics on `data` begin with: the last part of its path; empty if there
        is no `data`."""
        path = Path(self.data)
        if path.stem in ("train", "val", "test"):  # a run's own parts have these names
            return f"{path.parent.name}-{path.stem}"
        return path.stem

    @property
    def title(self) -> str:
        """Its name for people, which no other Eval of the recipe has: "Accuracy", or "Accuracy on
        photos"."""
        name = type(self.evaluator).__name__
        if self.data:
            return f"{name} on {self.images}"
        return name
