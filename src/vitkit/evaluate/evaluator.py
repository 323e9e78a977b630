"""What an evaluator is: settings, and a function that measures a model on images.

A run measures by the evaluators of its recipe, each when and on what its Eval says; `vitkit
evaluate` runs the same ones. A new evaluator is one file: a frozen dataclass with these two
methods, whose `measure` reads the images with `collect`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from torch import nn

from vitkit.data import Batch, Columns, Source, Target
from vitkit.evaluate.metric import Metric
from vitkit.system.span import Span
from vitkit.weights import Classifier


class Subject(NamedTuple):
    """The model that is measured, and what comes with it."""

    classifier: Classifier
    """The model, on its device, with what its images go through and the classes that it knows."""
    learner: nn.Module | None = None
    """What a run trains, the model among it; None for a finished model."""


class Part(NamedTuple):
    """The images that it is measured on."""

    source: Source
    """The images: their kind of target, and the names of their classes."""
    batches: Iterable[Batch]
    """Every image once, prepared for the model; of several ranks, each has its share."""


@runtime_checkable
class Evaluator(Protocol):
    """A frozen dataclass of settings that measures a model."""

    def judges(self, target: Target) -> bool:
        """Whether it can measure on images with such targets."""

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """What the model reaches on the images. The first metric is the one by which runs are
        compared.

        Raises ValueError for images or a model that it cannot measure.
        """


@dataclass(frozen=True)
class Eval:
    """An evaluator's place in a recipe: when it measures, and on what."""

    evaluator: Evaluator
    """What measures."""
    every: Span | None = None
    """Time between two evaluations; none is the recipe's `evaluate_every`. One always ends the
    run."""
    data: str = ""
    """Images to measure on, as `data.source` takes them; empty is what the run holds out."""
    columns: Columns = field(default_factory=Columns)
    """Which columns of these images' table hold the image and its label; found by their names
    unless told."""

    @property
    def images(self) -> str:
        """What metrics on data of its own begin with: the last part of its path or name; empty for
        the run's own parts."""
        path = Path(self.data)
        if path.stem in ("train", "val", "test"):  # which name the run's own parts
            return f"{path.parent.name}-{path.stem}"
        return path.stem

    @property
    def title(self) -> str:
        """What people call it, once in a recipe: "Accuracy", or "Accuracy on photos"."""
        name = type(self.evaluator).__name__
        return f"{name} on {self.images}" if self.data else name
