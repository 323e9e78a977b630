"""Which classes a model may answer with, and which of them count as the same answer.

Usually a model chooses among all of its classes, and each is an answer of its own. Some benchmarks have
other rules: ImageNet-A and R restrict the answers to their 200 classes, and ObjectNet accepts both "mountain
bike" and "tandem" for a bicycle.

Legend: B batch, K classes of the model, A of them that may be answered.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.evaluation.benchmarks.labels import LabelAlignment, align

NO_ANSWER = -1  # marks a class of the model that is not a possible answer


@dataclass(frozen=True, eq=False)
class Choice:
    """The answers that a model may give to images of a data set."""

    labels: tuple[str, ...]
    """The names of the answers."""
    answer_of: Tensor
    """The answer that each of the model's classes counts as, or NO_ANSWER: int64 (K,)."""
    truth: Tensor
    """The right answer for each of the data's classes: int64 (classes of the data,)."""
    notes: tuple[str, ...] = field(default=())
    """Sentences for readers of the results, such as about how classes were matched."""

    def to(self, device: torch.device | str) -> "Choice":
        """Returns a copy of the choice with its tensors on a device."""
        return replace(self, answer_of=self.answer_of.to(device), truth=self.truth.to(device))

    @cached_property
    def is_of_all_classes(self) -> bool:
        """Whether every class of the model is an answer of its own."""
        own = torch.arange(len(self.answer_of), device=self.answer_of.device)
        return bool(torch.equal(self.answer_of, own))

    @cached_property
    def joins_classes(self) -> bool:
        """Whether several classes of the model count as the same answer."""
        return len(self.labels) < len(self.columns)

    @cached_property
    def columns(self) -> Tensor:
        """The model's classes that are possible answers, ascending: int64 (A,)."""
        return (self.answer_of != NO_ANSWER).nonzero()[:, 0]

    @cached_property
    def answers(self) -> Tensor:
        """The answer that each of the A columns counts as: int64 (A,)."""
        return self.answer_of[self.columns]

    def allowed(self, logits: Tensor) -> Tensor:
        """The logits of the possible answers: (B, K) -> (B, A)."""
        if len(self.columns) == logits.shape[1]:
            return logits
        return logits[:, self.columns]

    def own_column(self, logits: Tensor, truth: Tensor) -> Tensor:
        """(B, A), (B,) -> the most likely column that is the right answer, (B,)."""
        if self.is_of_all_classes:
            return truth
        is_right = self.answers == truth[:, None]  # (B, A)
        return logits.masked_fill(~is_right, -torch.inf).argmax(-1)

    def columns_of(self, answers: Tensor) -> Tensor:
        """The columns that count as one of these answers, ascending."""
        return torch.isin(self.answers, answers).nonzero()[:, 0]

    def confidence(self, probabilities: Tensor) -> Tensor:
        """(B, A) -> the probability of the most likely answer, summed over its classes, (B,)."""
        highest, column = probabilities.max(-1)
        if not self.joins_classes:
            return highest
        is_same = self.answers == self.answers[column][:, None]
        return (probabilities * is_same).sum(-1).clamp(max=1)

    def loss(self, logits: Tensor, own: Tensor, truth: Tensor) -> Tensor:
        """The softmax loss, in nats: logits (B, A), right column (B,), right answer (B,) -> (B,). The
        probabilities of columns that count as the same answer are summed."""
        if not self.joins_classes:
            return F.cross_entropy(logits, own, reduction="none")
        is_right = self.answers == truth[:, None]
        return -logits.log_softmax(-1).masked_fill(~is_right, -torch.inf).logsumexp(-1)


def among_all(
    data: Sequence[str], model: Sequence[str], needed: Container[int] | None = None
) -> Choice:
    """A choice among all of the model's classes. `needed` and the errors are those of `align`."""
    alignment = align(data, model, needed)
    return Choice(tuple(model), torch.arange(len(model)), alignment.classes, alignment.notes)


def among_the_datas(data: Sequence[str], model: Sequence[str]) -> Choice:
    """A choice among the data's classes alone. Raises VitkitError as `align` does."""
    alignment = align(data, model)
    return Choice(
        labels=tuple(model[k] for k in alignment.classes.tolist()),
        answer_of=_inverse(alignment, len(model)),
        truth=torch.arange(len(data)),
        notes=alignment.notes,
    )


def several_are_right(
    data: Sequence[str], names: Sequence[Sequence[str]], model: Sequence[str]
) -> Choice:
    """A choice among all of the model's classes, where several of them, given by `names`, are right for
    each of the data's classes. Raises VitkitError as `align` does, and if a class of the model is right
    for two of the data's."""
    flat = list(chain.from_iterable(names))
    owners = np.repeat(np.arange(len(data)), [len(several) for several in names])
    alignment = align(flat, model)

    # The data's classes come first, then the model's others
    answer_of = torch.full((len(model),), NO_ANSWER)
    answer_of[alignment.classes] = torch.from_numpy(owners)
    others = (answer_of == NO_ANSWER).nonzero()[:, 0]
    answer_of[others] = torch.arange(len(data), len(data) + len(others))
    labels = (*data, *(model[k] for k in others.tolist()))
    return Choice(labels, answer_of, torch.arange(len(data)), alignment.notes)


def _inverse(alignment: LabelAlignment, classes: int) -> Tensor:
    """The data's class that each of the model's classes is; NO_ANSWER for one that is not in the data."""
    answer_of = torch.full((classes,), NO_ANSWER)
    answer_of[alignment.classes] = torch.arange(len(alignment.classes))
    return answer_of
