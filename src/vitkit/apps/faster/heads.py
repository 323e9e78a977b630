"""The head of a candidate, and its logits for the images that evaluate it.

If the classifier's own head is in closed form, every candidate gets a closed-form head on the
features of its own backbone, and is evaluated by leave-one-out predictions. Any other classifier
keeps its head as long as its backbone is complete; otherwise the head is distilled: fitted by least
squares from the backbone's states to the logits of the classifier, which needs no labels. It is
fitted to other images than the evaluation images.

Legend: N images, D width, K classes.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.apps.faster.bodies import (
    Arithmetic,
    Body,
    Shape,
    model_of,
    own_reading,
    reading_of,
    whole,
)
from vitkit.apps.faster.subjects import SearchSubject
from vitkit.evaluation import (
    Features,
    Probe,
    distilled,
    fit_unknown,
    last_token,
    tied_answers,
    with_probe,
)
from vitkit.finetuning import head_on, solved
from vitkit.models import FeatureSet
from vitkit.system.errors import BadRun
from vitkit.weights import Classifier, activate_array
from vitkit.weights.adoption import with_zero_head

LEAST_OWN = (
    0.95  # smallest share of images on which a refitted head must agree with the run's model
)


@dataclass(frozen=True, eq=False)
class BodyHead:
    """A head on the states of a body, for one shape."""

    reads: FeatureSet
    weight: Tensor | None
    """(K, D), float64; None if the classifier keeps its own head."""
    bias: Tensor | None
    """(K,)"""
    answers: Tensor
    """Logits of the evaluation images, which the head has not learned from, (N, K)."""
    probe: Probe | None = None
    """The fit of a closed-form head to the labels; None for other heads."""

    def logits(self, classifier: Classifier, x: np.ndarray) -> Tensor:
        """The logits of the head for its features, (N, D) -> (N, K). classifier: the one that keeps its
        head, if it does."""
        if self.weight is None or self.bias is None:
            return head_on(classifier, x)
        return torch.tensor(x).double() @ self.weight.mT + self.bias


def head_of(subject: SearchSubject, body: Body, shape: Shape, exact: Arithmetic) -> BodyHead:
    """The head of a shape on its body, with its logits. exact: the arithmetic that computes the
    classifier's own logits, for a distilled head."""
    images = len(subject.fitted)
    reads = reading_of(subject.classifier, shape, images)
    evaluated = body.read(body.states(subject.evaluated), shape, reads)
    if subject.asked is not None:
        learned = Features(evaluated, subject.evaluated.target_array)
        probe = solved(subject.asked, learned, subject.evaluated.groups)
        return BodyHead(reads, probe.weight, probe.bias, probe.left_out, probe)
    if keeps_head(subject.classifier, shape, reads):
        return BodyHead(reads, None, None, head_on(subject.classifier, evaluated))
    fitted = body.read(body.states(subject.fitted), shape, reads)
    weight, bias = distilled(torch.tensor(fitted), own_answers(subject, exact))
    return BodyHead(reads, weight, bias, torch.tensor(evaluated).double() @ weight.mT + bias)


def keeps_head(classifier: Classifier, shape: Shape, reads: FeatureSet) -> bool:
    """Whether the classifier's own head fits: no block is left out, and its feature set is unchanged."""
    return shape.blocks == whole(classifier).blocks and reads == own_reading(classifier)


def own_answers(subject: SearchSubject, exact: Arithmetic) -> Tensor:
    """The classifier's own logits for the images that heads are fitted to, (N, K)."""
    full = whole(subject.classifier)
    body = Body(subject, exact, full.image)
    x = body.read(body.states(subject.fitted), full, own_reading(subject.classifier))
    return head_on(subject.classifier, x)


def check_own(subject: SearchSubject, head: BodyHead, x: np.ndarray) -> None:
    """Raises VitkitError if a run's model is not the one that was fitted to its images, but was changed
    since, for example by `vitkit teach`.

    head: that of the whole model. x: its features of the evaluation images, (N, D).
    """
    if subject.asked is None:
        return
    logits = head_on(subject.classifier, x).detach().numpy()
    own = activate_array(logits, subject.classifier.activation)
    answers = head.logits(subject.classifier, x).argmax(1).numpy()
    same = ((answers == own.argmax(1)) | tied_answers(own, answers)).mean()
    if same < LEAST_OWN:
        raise BadRun(
            f"the model agrees with the one that its run made on only {same:.0%} of the images, so "
            "it was changed afterwards; name images that it has not learned from with `data`"
        )


def with_head(subject: SearchSubject, shape: Shape, head: BodyHead, x: np.ndarray) -> Classifier:
    """The classifier of a shape with its head, for writing to a file.

    x: the head's features of the evaluation images, (N, D). If the classifier has rejection
    thresholds, new ones are fitted to them.
    """
    own = subject.classifier
    model = model_of(own, shape, head.reads)
    if head.weight is None or head.bias is None:
        is_whole = shape == whole(own)
        return replace(model, unknown=own.unknown if is_whole else None)
    with_own = replace(model, model=with_zero_head(model.model, model.model.config))
    if head.probe is None:
        return replace(_with_weights(with_own, head.weight, head.bias), unknown=None)
    solved_for = with_probe(with_own, head.probe, own.labels, own.activation)
    if own.unknown is None:
        return solved_for
    unknown = fit_unknown(
        torch.tensor(x),
        torch.tensor(subject.evaluated.target_array),
        head.answers,
        groups=subject.evaluated.groups,
        told_by=last_token(solved_for),
    )
    return replace(solved_for, unknown=unknown)


@torch.no_grad()
def _with_weights(classifier: Classifier, weight: Tensor, bias: Tensor) -> Classifier:
    """The classifier with these weights, (K, D) and (K,), in its all-zero head, in place."""
    head = classifier.model.head
    assert isinstance(head, nn.Linear)  # model_of has made it
    head.weight.copy_(weight.float())
    head.bias.copy_(bias.float())
    return classifier
