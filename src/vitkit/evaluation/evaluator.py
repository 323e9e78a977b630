"""What an evaluator is: a value with settings, and a method that measures a model on images.

A run measures itself by the evaluators of its recipe; an Eval says when each of them does, and on
which images. `vitkit evaluate` runs the same evaluators. A new one is one file: a frozen dataclass
with the two methods of `Evaluator`, whose `measure` reads the images with `collect`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from torch import nn

from vitkit.data import Batch, Columns, Source, TargetKind
from vitkit.evaluation.metrics.metric import Metric
from vitkit.system.span import Span
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.evaluation.metrics.answers import Answers

OWN_PARTS = ("train", "val", "test")  # metrics on what a run holds out begin with these
FILES = (".csv", ".jsonl", ".parquet", ".tar")  # whose suffix is no part of a name


class Subject(NamedTuple):
    """The model that is measured, and what comes with it."""

    classifier: Classifier
    """The model on its device, with its preprocessing and the names of its classes."""
    learner: nn.Module | None = None
    """The learner that the model belongs to while it trains; None for a finished model."""


def no_batches(source: Source) -> None:
    """None: whoever needs images of this source prepares them."""


def drop(given: "Answers") -> None:
    """Nothing: nobody wants the answers that a metric was computed from."""


def learns(evaluator: "Evaluator") -> bool:
    """Whether an evaluator fits something to training images, and then measures it: its class says
    so with `learns = True`."""
    return getattr(evaluator, "learns", False)


class Part(NamedTuple):
    """The images that a model is measured on."""

    source: Source
    """Where they are from: it says their kind of targets, and the names of their classes."""
    batches: Iterable[Batch]
    """Every image once, prepared for the model; of several ranks, each has its share of them."""
    train: Source | None = None
    """Training images of the same data set, for an evaluator that learns from them (`learns`);
    None if there are none."""
    read: Callable[[Source], Iterable[Batch] | None] = no_batches
    """Prepares other images as `batches` are: of `train`, or of some of it."""
    keep: "Callable[[Answers], None]" = drop
    """Gets the answers to the images, if these have one class each: a run keeps those of its last
    evaluation."""


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
    name: str = ""
    """What distinguishes it from another Eval; its metrics begin with it. By default the last part
    of the path of `data`."""

    def __post_init__(self):
        if self.data and (not self.images or self.images in OWN_PARTS):
            raise ValueError(
                f"metrics on {self.data!r} would be called {self.images + '/top1'!r}; give this "
                "Eval a name of its own (--evals.0.name)"
            )

    @property
    def images(self) -> str:
        """What the names of metrics on `data` begin with: `name`, or the last part of the path;
        empty if there is no `data`."""
        path = Path(self.data)
        last = path.name
        if path.suffix in FILES:
            last = path.stem
        if self.name and self.data:
            return self.name
        if last in OWN_PARTS and path.parent.name:
            return f"{path.parent.name}-{last}"
        return last

    @property
    def train_images(self) -> str:
        """What the training images of `data` are called, for an evaluator that learns."""
        return f"{self.images}/train"

    @property
    def title(self) -> str:
        """Its name for people, which no other Eval of the recipe has: "Accuracy", "Accuracy on
        photos", or "Neighbours (five)"."""
        kind = type(self.evaluator).__name__
        if self.data:
            return f"{kind} on {self.images}"
        if self.name:
            return f"{kind} ({self.name})"
        return kind

    def named(self, metric: Metric, part: str) -> Metric:
        """A metric under its name in a run: "test/top1" of the run's own part, "photos/top1" on
        `data`, or "five/test/top1" if this Eval has the name five."""
        metric = metric.within(part)
        if self.name and not self.data:
            metric = metric.within(self.name)
        return metric
