"""The interface of evaluators: a frozen dataclass of settings, with a method that measures a model on images.

A run evaluates its model with the evaluators of its recipe; an Eval says when each of them runs, and
on which images. `vitkit evaluate` runs the same evaluators. A new one is one file: a frozen dataclass
with the two methods of `Evaluator`, whose `measure` reads the images with `collect`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vitkit.data import (
    Batch,
    Columns,
    Source,
    TargetKind,
    default_workers,
    eval_batches,
)
from vitkit.data.loading.batches import EvalBatches, WholePictures
from vitkit.evaluation.metrics.metric import Metric
from vitkit.system.console.progress import bar
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.processes.ranks import from_every_rank, on_rank_0, sum_over_ranks, world
from vitkit.system.span import Span
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.remote import without_query
from vitkit.system.values import check_settings
from vitkit.weights import Classifier, evaluating

if TYPE_CHECKING:
    from vitkit.evaluation.metrics.answers import Answers


BATCH = 64  # default number of images of a forward pass
OWN_PARTS = ("train", "val", "test")  # names of metrics on a run's own parts begin with these
FILES = (".csv", ".jsonl", ".parquet", ".tar")  # suffixes that are left out of a data set's name


class Subject(NamedTuple):
    """The model that is measured, and what comes with it."""

    classifier: Classifier
    """The model on its device, with its preprocessing and the names of its classes."""
    learner: nn.Module | None = None
    """The learner that the model belongs to while it trains; None for a finished model."""


def learns(evaluator: "Evaluator") -> bool:
    """Whether an evaluator first fits something to training images: whether its `learns` is True."""
    return getattr(evaluator, "learns", False)


def no_batches(source: Source) -> None:
    """Default for `Part.read`: does nothing."""


def drop(given: "Answers") -> None:
    """Default for `Part.keep`: discards the answers."""


class Part(NamedTuple):
    """The images that a model is measured on."""

    source: Source
    """The data set of the images, which says their kind of targets and the names of their classes."""
    batches: Iterable[Batch]
    """Every image once, prepared for the model; with several ranks, this rank's share of them."""
    train: Source | None = None
    """Training images of the same data set for an evaluator that learns; or None."""
    read: Callable[[Source], Iterable[Batch] | None] = no_batches
    """Prepares other images, of `train` or of a subset of it, in the same way as `batches`. If it returns
    None, the evaluator prepares them itself."""
    keep: "Callable[[Answers], None]" = drop
    """Receives the model's answers to the images if these have one class each: a run keeps the answers of
    its last evaluation."""


@runtime_checkable
class Evaluator(Protocol):
    """A frozen dataclass of settings that measures a model."""

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether the evaluator can measure images with this kind of target."""

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields the model's metrics on the images. Runs are compared by the first one. Raises
        VitkitError for images or a model that the evaluator cannot handle."""


@dataclass(frozen=True)
class Eval:
    """An evaluator in a recipe: what it measures, when, and on which images."""

    evaluator: Evaluator
    """The evaluator."""
    every: Span | None = None
    """Time between two evaluations; None is the recipe's `evaluate_every`. There is always one at
    the end of the run."""
    data: str = ""
    """Images to measure on, in the form of `data.source`. Empty: the images that the run holds
    out."""
    columns: Columns = field(default_factory=Columns)
    """Columns of the table of `data` that hold the image and its label. Default: found by their
    names."""
    name: str = ""
    """Name that distinguishes it from another Eval; the names of its metrics begin with it.
    Default: the last part of the path of `data`."""

    def __post_init__(self):
        check_settings(self)
        if self.data and (not self.images or self.images in OWN_PARTS):
            raise BadSettings(
                f"metrics on {self.data!r} would be called {self.images + '/top1'!r}; give this "
                "Eval a name of its own (`evals.0.name`)"
            )

    @property
    def images(self) -> str:
        """The prefix of the names of metrics on `data`: `name`, or the last part of the path; empty
        if there is no `data`."""
        path = Path(without_query(shown_address(self.data)))
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
        """The name of the training images of `data`, for an evaluator that learns."""
        return f"{self.images}/train"

    @property
    def title(self) -> str:
        """The displayed name, which no other Eval of the recipe has: "Accuracy", "Accuracy on
        photos", or "Neighbours (five)"."""
        kind = type(self.evaluator).__name__
        if self.data:
            return f"{kind} on {self.images}"
        if self.name:
            return f"{kind} ({self.name})"
        return kind

    def named(self, metric: Metric, part: str) -> Metric:
        """A metric with the name that it has in a run: "test/top1" on the run's own test part,
        "photos/top1" on `data`, or "five/test/top1" if this Eval has the name five."""
        metric = metric.within(part)
        if self.name and not self.data:
            metric = metric.within(self.name)
        return metric


# The pass over images that all evaluators share: `collect` iterates over the batches, then `summed` or
# `concatenated` combines their rows. Every example counts exactly once, whatever the batch size and the
# number of ranks. Legend: B examples of a batch, N of all batches.


Rows = tuple[Tensor, ...]
"""Tensors (B, ...) with a row for each example of a batch."""


@torch.no_grad()  # not inference_mode: FSDP goes on training with tensors that it makes here
def collect(
    model: nn.Module,
    batches: Iterable[Batch],
    read: Callable[[Batch], Rows],
    device: torch.device | str,
) -> Iterator[Rows]:
    """Yields what `read` returns for each batch, without padding. `model` is in evaluation mode
    meanwhile, and afterwards in its previous mode.

    `read` gets a batch on the device, including the padding rows: they give all ranks the same number of
    equally large batches, so that every rank calls the model equally often. The padding rows are removed
    from what `read` returns, whatever their values.
    """
    with evaluating(model):
        for batch in batches:
            is_full = bool(batch.real.all())
            batch = Batch(*(tensor.to(device, non_blocking=True) for tensor in batch))
            rows = read(batch)
            if not is_full:  # selecting rows waits for the device
                rows = tuple(values[batch.real] for values in rows)
            yield rows


def summed(parts: Iterable[Rows]) -> tuple[list[Tensor], int]:
    """The sums of rows over all examples of all ranks: float64 tensors of a row's shape; and the
    number of examples. Raises VitkitError if there are none."""
    totals: list[Tensor] = []
    seen = torch.zeros((), dtype=torch.int64)
    for rows in _one_behind(parts):
        seen += len(rows[0])
        sums = [values.cpu().double().sum(0) for values in rows]  # not every device has float64
        if totals:
            sums = [total + more for total, more in zip(totals, sums, strict=True)]
        totals = sums
    if not sum_over_ranks(seen):
        raise BadData("there is no image to evaluate on")
    return [sum_over_ranks(total) for total in totals], int(seen)


def concatenated(parts: Iterable[Rows]) -> list[Tensor]:
    """The rows of all examples of all ranks: tensors (N, ...) on the CPU. Raises VitkitError if
    there are none."""
    # Concatenate each column over this rank's batches, then over all ranks
    batches = []
    for rows in _one_behind(parts):
        batches.append([values.cpu() for values in rows])
    own = [torch.cat(values) for values in zip(*batches, strict=True)]
    del batches  # of many images each copy counts
    of_all_ranks = from_every_rank(own)
    joined = own
    if len(of_all_ranks) > 1:
        joined = [torch.cat(values) for values in zip(*of_all_ranks, strict=True)]
    if not joined or not len(joined[0]):
        raise BadData("there is no image to evaluate on")
    return joined


def _one_behind(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yields each part after the next has been requested, so that copying overlaps computing."""
    ahead = iter(parts)
    rows = next(ahead, None)
    while rows is not None:
        following = next(ahead, None)
        yield rows
        rows = following


def batches_of(
    classifier: Classifier, source: Source, text: str, batch: int = BATCH, workers: int = -1
) -> Iterable[Batch]:
    """This rank's share of the images in batches, with a progress bar. `workers` processes decode them
    while the model computes; -1 is as many as the CPU quota allows."""
    share = world()
    takes_pictures = getattr(classifier.model, "takes_pictures", False)
    rows = _even_batch(batch, len(source), share.world_size)
    if workers < 0:
        workers = default_workers(source)
        if rows >= len(source) and not takes_pictures:
            workers = 0  # a single batch: nothing to compute while it is decoded
    batches: WholePictures | EvalBatches
    if takes_pictures:  # the model prepares images itself, one at a time
        batches = WholePictures(source, workers, share)
    else:
        pin = classifier.device.type == "cuda"
        batches = eval_batches(source, classifier.preprocessing, rows, workers, share, pin=pin)
    if not on_rank_0():
        return batches
    return bar(text)(batches, len(batches))


def _even_batch(batch: int, images: int, world_size: int) -> int:
    """The number of images of a forward pass over all ranks: at most `batch`, at least one for each rank,
    and such that all passes are about equally large. The last pass is filled with padding rows, which
    cost as much as images: 63 of them for 65 images in batches of 64."""
    most = max(batch // world_size, 1) * world_size
    passes = max(-(-images // most), 1)
    return max(-(-images // (passes * world_size)), 1) * world_size
