"""A model's answers to images with one class each: one pass, from which every number of a report
is computed; and the file that keeps them, so that more metrics can be computed later.

Legend: B batch, N images, K classes of the model, A of them that may be answered (all, unless a
Choice says otherwise).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Batch, Source
from vitkit.evaluation.benchmarks.choice import Choice, among_all
from vitkit.evaluation.evaluator import Part, collect, concatenated
from vitkit.system.errors import BadData, Unsupported
from vitkit.system.storage.files import parse_json, whole
from vitkit.system.storage.records import value_of
from vitkit.weights import Classifier, write_safetensors

NAMES = ("labels", "notes", "logits", "groups")  # fields of Answers that are not required arrays


@dataclass(frozen=True, eq=False)
class Answers:
    """A model's answers to N images, in the order of the source. Classes index `labels`."""

    labels: tuple[str, ...]
    """The names of the possible answers: by default those of the model's K classes."""
    notes: tuple[str, ...]
    """Sentences about how the data's classes were matched with the model's."""
    indices: np.ndarray
    """Index of each image in the source: int64 (N,)."""
    truth: np.ndarray
    """The true class: int64 (N,)."""
    predicted: np.ndarray
    """The most likely class; the first of several that are equally likely: int64 (N,)."""
    rank: np.ndarray
    """Rank of the true class among all, from 0, which is a right answer: int64 (N,)."""
    rank_in_data: np.ndarray
    """Rank of the true class among the classes that occur in the data, from 0: int64 (N,)."""
    confidence: np.ndarray
    """The probability of the most likely class: float64 (N,)."""
    loss: np.ndarray
    """The softmax loss, in nats: float64 (N,)."""
    tied: np.ndarray
    """Whether several classes have the highest probability: bool (N,)."""
    finite: np.ndarray
    """Whether all logits of the image are finite; if not, its other values mean nothing: bool (N,)."""
    logits: np.ndarray | None = None
    """The model's logits, float32 (N, A), if they were requested."""
    groups: np.ndarray | None = None
    """Group number of each image, int64 (N,): images of one group, such as shots of one burst, have
    dependent answers. None if all images are independent."""

    def __len__(self) -> int:
        return len(self.truth)

    @cached_property
    def right(self) -> np.ndarray:
        """Whether the most likely class is the true one: bool (N,)."""
        return self.rank == 0

    @cached_property
    def present(self) -> np.ndarray:
        """The classes that any of the images has, in ascending order."""
        return np.unique(self.truth)


def answers(
    classifier: Classifier, part: Part, keep_logits: bool = False, choice: Choice | None = None
) -> Answers:
    """Run a model on images, once. The data's classes are matched with the model's by their names, and
    the model may answer any of its classes, unless a choice says otherwise.

    With several ranks, each gets the answers to all images. Raises VitkitError for a model without
    classes, for classes that the model does not know, for a target that is no class of the source, and
    if there is no image.
    """
    choice, read = _reading(classifier, part.source, choice, keep_logits)

    def read_batch(batch: Batch) -> tuple[Tensor, ...]:
        logits = classifier.logits(batch.images)  # (B, K)
        if logits.ndim != 2:
            raise Unsupported(
                'the model gives an answer for every token (its pool is "none"), and here an image '
                "has one class"
            )
        return read(batch.indices, batch.targets, logits)

    rows = concatenated(collect(classifier.model, part.batches, read_batch, classifier.device))
    given = in_groups(_in_order(rows, choice), part.source)
    part.keep(given)
    return given


def answers_of_logits(classifier: Classifier, source: Source, logits: Tensor) -> Answers:
    """Answers computed from given logits, float32 (N, K), in the order of the source."""
    choice, read = _reading(classifier, source, None, False)
    device = classifier.device
    indices = torch.arange(len(source), device=device)
    targets = torch.as_tensor(source.targets, device=device)
    rows = [row.cpu() for row in read(indices, targets, logits.to(device))]
    return in_groups(_in_order(rows, choice), source)


def in_groups(given: Answers, source: Source) -> Answers:
    """The answers with the groups of the source's images, unless they have groups already, or no two images
    are in one group."""
    if given.groups is not None or source.groups is None:
        return given
    groups = source.groups[given.indices]
    if len(np.unique(groups)) == len(groups):
        return given
    return replace(given, groups=groups)


Read = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""Indices of images (B,), their targets (B,) and logits (B, K) -> the columns of Answers."""


def _reading(
    classifier: Classifier, source: Source, choice: Choice | None, keep_logits: bool
) -> tuple[Choice, Read]:
    """The possible answers, and a function from a batch's logits to the columns of Answers."""
    check_classes(classifier)
    check_targets(source)
    present = np.unique(source.target_array)
    if choice is None:
        choice = among_all(source.labels, classifier.labels, present)
    chosen = choice.to(classifier.device)
    in_data = chosen.columns_of(chosen.truth[torch.from_numpy(present).to(classifier.device)])

    def read(indices: Tensor, targets: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
        truth = chosen.truth[targets]  # (B,)
        logits = chosen.allowed(logits)  # (B, A)
        own = chosen.own_column(logits, truth)  # (B,)
        highest, column = logits.max(-1)  # of equal logits, the first
        rows: tuple[Tensor, ...] = (
            indices,
            truth,
            chosen.answers[column],
            ranks(logits, own),
            ranks_among(logits, own, in_data),
            chosen.confidence(classifier.probabilities(logits)),
            chosen.loss(logits, own, truth),
            (logits == highest[:, None]).sum(-1) > 1,
            logits.isfinite().all(-1),
        )
        if keep_logits:
            rows += (logits,)
        return rows

    return choice, read


def _in_order(rows: Sequence[Tensor], choice: Choice) -> Answers:
    """Answers from columns of all ranks, sorted by the index of the image."""
    order = rows[0].argsort()
    arrays = [values[order].numpy() for values in rows]
    confidence, loss = arrays[5:7]
    arrays[5:7] = confidence.astype(np.float64), loss.astype(np.float64)
    return Answers(choice.labels, choice.notes, *arrays)


def ranks(logits: Tensor, truth: Tensor) -> Tensor:
    """(B, K), (B,) -> the rank of the true class, (B,): the number of classes with a higher logit, or with
    an equal logit and a smaller index."""
    own = logits.gather(1, truth[:, None])  # (B, 1)
    number = torch.arange(logits.shape[1], device=logits.device)
    before = (logits > own) | ((logits == own) & (number < truth[:, None]))
    return before.sum(-1)


def ranks_among(logits: Tensor, truth: Tensor, classes: Tensor) -> Tensor:
    """The rank of the true class among these classes alone, (C,): (B, K), (B,) -> (B,)."""
    is_true = truth[:, None] == classes  # (B, C), one in each row
    return ranks(logits[:, classes], is_true.long().argmax(-1))


def check_classes(classifier: Classifier) -> None:
    """Raises VitkitError for a model whose outputs are not classes."""
    if not classifier.labels:
        raise Unsupported(
            "the model has no classification head, so it names no classes; give it one with "
            "vitkit finetune, or measure what its features are worth with `evals='neighbours'`"
        )
    if classifier.activation == "none":
        raise Unsupported(
            "the model's outputs are numbers, not classes (its activation is none), so it "
            "has no accuracy on images with classes; measure it on images with numbers, or "
            "what its features are worth with `evals='neighbours'`"
        )


def check_targets(source: Source) -> None:
    """Raises VitkitError for a target that is no index of the source's classes. Only a user's own function
    can return such a source."""
    targets = source.target_array
    wrong = (targets < 0) | (targets >= len(source.labels))
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise BadData(
            f"{int(wrong.sum())} of {len(source)} images have a class that does not exist: "
            f"{source.name(i)} has {targets[i]}, and there are {len(source.labels)} classes "
            "(0 is the first)"
        )


# Answers as a file


class Kept(NamedTuple):
    """Answers to a part of the data, and the training step of the model that gave them."""

    answers: Answers
    part: str
    """The part of the data, such as "test"."""
    step: int
    """Number of training steps before the evaluation."""


def write_answers(path: Path, kept: Kept) -> None:
    """Write all fields except the logits, as safetensors. Raises OSError."""
    import torch

    tensors = {}
    for field in fields(Answers):
        if field.name not in NAMES:
            tensors[field.name] = torch.from_numpy(getattr(kept.answers, field.name))
    if kept.answers.groups is not None:
        tensors["groups"] = torch.from_numpy(kept.answers.groups)
    description = {
        "labels": json.dumps(kept.answers.labels),
        "notes": json.dumps(kept.answers.notes),
        "part": kept.part,
        "step": str(kept.step),
    }
    with whole(path) as new:
        write_safetensors(new, tensors, description)


def read_answers(path: Path) -> Kept | None:
    """The answers in a file of `write_answers`; None if there is no such file, or if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as opened:
            values = opened.metadata()
            arrays: dict[str, np.ndarray] = {}
            for field in fields(Answers):
                if field.name not in NAMES:
                    arrays[field.name] = opened.get_tensor(field.name)
            names = set(opened.keys())
            if "groups" in names:
                arrays["groups"] = opened.get_tensor("groups")
        if len({len(array) for array in arrays.values()}) > 1:
            return None
        labels = value_of(tuple[str, ...], parse_json(values["labels"]), "labels")
        notes = value_of(tuple[str, ...], parse_json(values["notes"]), "notes")
        return Kept(Answers(labels, notes, **arrays), values["part"], int(values["step"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
