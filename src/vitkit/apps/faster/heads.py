"""The head of a candidate, and how it answers the images that the search judges by.

If the classifier's own head was solved in closed form, so is every candidate's, on what its own body makes
of the images, and each image is answered by a fit without it. Any other classifier keeps its head as long
as its body is whole; else a head is distilled: least squares from the body's states to the logits of the
classifier, which needs no labels. It is fitted to other images than those that are judged.

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

LEAST_OWN = 0.95  # share of a run's images with the answer of the head that is solved for again


@dataclass(frozen=True, eq=False)
class BodyHead:
    """A head on the states of a shape's body."""

    reads: FeatureSet
    weight: Tensor | None
    """(K, D), float64; None for the classifier's own head."""
    bias: Tensor | None
    """(K,)"""
    answers: Tensor
    """The logits of the images that candidates are judged on, which it has not learned from, (N, K)."""
    probe: Probe | None = None
    """The fit, if it is one to the right answers."""

    def logits(self, classifier: Classifier, x: np.ndarray) -> Tensor:
        """The logits of the head for its features, (N, D) -> (N, K). classifier: whose head it
        is, if it keeps its own."""
        if self.weight is None or self.bias is None:
            return head_on(classifier, x)
        return torch.tensor(x).double() @ self.weight.mT + self.bias


def head_of(subject: SearchSubject, body: Body, shape: Shape, exact: Arithmetic) -> BodyHead:
    """The head of a shape on its body, and its answers. exact: what computes the classifier's own
    answers, for a head that is distilled."""
    images = len(subject.fitted)
    reads = reading_of(subject.classifier, shape, images)
    judged = body.read(body.states(subject.judged), shape, reads)
    if subject.asked is not None:
        learned = Features(judged, subject.judged.target_array)
        probe = solved(subject.asked, learned, subject.judged.groups)
        return BodyHead(reads, probe.weight, probe.bias, probe.left_out, probe)
    if keeps_head(subject.classifier, shape, reads):
        return BodyHead(reads, None, None, head_on(subject.classifier, judged))
    fitted = body.read(body.states(subject.fitted), shape, reads)
    weight, bias = distilled(torch.tensor(fitted), own_answers(subject, exact))
    return BodyHead(reads, weight, bias, torch.tensor(judged).double() @ weight.mT + bias)


def keeps_head(classifier: Classifier, shape: Shape, reads: FeatureSet) -> bool:
    """Whether the classifier's own head fits: no block is left out, and it reads what it did."""
    return shape.blocks == whole(classifier).blocks and reads == own_reading(classifier)


def own_answers(subject: SearchSubject, exact: Arithmetic) -> Tensor:
    """The classifier's own logits of the images that heads are fitted to, (N, K)."""
    full = whole(subject.classifier)
    body = Body(subject, exact, full.image)
    x = body.read(body.states(subject.fitted), full, own_reading(subject.classifier))
    return head_on(subject.classifier, x)


def check_own(subject: SearchSubject, head: BodyHead, x: np.ndarray) -> None:
    """Raises VitkitError if a run's model is not the one that was solved for on its images, and so has
    answers of its own: somebody has taught it, or put another one there.

    head: that of the whole model, which reads x of the judged images, (N, D).
    """
    if subject.asked is None:
        return
    logits = head_on(subject.classifier, x).detach().numpy()
    own = activate_array(logits, subject.classifier.activation)
    answers = head.logits(subject.classifier, x).argmax(1).numpy()
    same = ((answers == own.argmax(1)) | tied_answers(own, answers)).mean()
    if same < LEAST_OWN:
        raise BadRun(
            f"the model agrees with the one that its run solved for on {same:.0%} of the images only, so "
            "it was changed afterwards; name images that it has not learned from with `data`"
        )


def with_head(subject: SearchSubject, shape: Shape, head: BodyHead, x: np.ndarray) -> Classifier:
    """The classifier of a shape with its head, as it is written to a file.

    x: what the head reads of the judged images, (N, D): by it the limits for unknown images are fitted
    anew, if the classifier has some.
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
        torch.tensor(subject.judged.target_array),
        head.answers,
        groups=subject.judged.groups,
        told_by=last_token(solved_for),
    )
    return replace(solved_for, unknown=unknown)


@torch.no_grad()
def _with_weights(classifier: Classifier, weight: Tensor, bias: Tensor) -> Classifier:
    """The classifier, whose head is one of zeros, with these weights in it, (K, D) and (K,), in place."""
    head = classifier.model.head
    assert isinstance(head, nn.Linear)  # as it is one of zeros
    head.weight.copy_(weight.float())
    head.bias.copy_(bias.float())
    return classifier
