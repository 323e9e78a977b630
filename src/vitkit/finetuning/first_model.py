"""The first model of a folder of photographs, seconds after the command: a head in closed form on the
features of a pre-trained model."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Source, is_elsewhere
from vitkit.evaluation import Features, Metric, Probing, fit_unknown, last_token, open_classes
from vitkit.evaluation.probes.teaching import remembered, write_memory
from vitkit.finetuning.candidates import (
    CLOSED_FORM,
    Candidate,
    candidate,
    main_metric,
    solved,
    with_head,
)
from vitkit.finetuning.folder import Photographs, look_alikes
from vitkit.finetuning.head_inputs import FittedHead
from vitkit.finetuning.plan import RunInputs, features_of, with_origin
from vitkit.models import OF_THE_PAPER
from vitkit.system.console.text import counted
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training.state.checkpoints import MODEL
from vitkit.weights import Classifier, save


@dataclass(frozen=True)
class First:
    """The first model: a head in closed form."""

    asked: Probing
    bare: Classifier
    """The pre-trained model with a head of zeros."""
    classifier: Classifier
    """With the head that all images to learn from give."""
    left_out: Metric
    held_out: Candidate | None
    """How good its answers to the held-out images are, each by a fit without it; with a model that has
    learned from none of them. None if nothing is held out."""
    test_logits: Tensor | None
    """Of the images to test on, (N, K), if there are some;"""
    test: Metric | None
    """and how good they are."""


def closed_form(work: RunInputs, reading: FittedHead, is_saved: bool) -> First:
    """The model with the closed-form head, and its quality, which is printed. It is saved if no
    model is."""
    photographs = work.photographs
    asked, bare, learned, whole = reading

    # Each image answered by a fit without it
    groups = photographs.learned.groups
    left_out = next(asked.left_out_quality(whole, learned.y, groups))
    classifier = with_origin(work, with_head(bare, whole, asked), CLOSED_FORM, left_out)
    if asked.kind == "class":
        unknown = fit_unknown(
            torch.tensor(learned.x),
            torch.tensor(learned.y),
            whole.left_out,
            groups=groups,
            told_by=last_token(bare),
        )
        classifier = replace(classifier, unknown=unknown)
    if not is_saved:
        from_rank_0(lambda: _save_first(work, classifier, learned))
        work.say(f"after {work.seconds()} a first model is in {work.run_dir / MODEL}")
    seen = _of_last_token(bare, learned)
    sentences = [NOBODY_KNOWS]
    if whole.known.any():
        sentences = left_out_sentences(asked, left_out, seen, photographs.learned)
    for sentence in sentences:
        work.say(sentence)
    if asked.kind == "class":
        few = open_classes(
            asked.labels, np.bincount(learned.y, minlength=len(asked.labels)).tolist()
        )
        if few is not None:
            work.say(few)

    # On the images to test on
    test_logits = None
    test = None
    if photographs.test is not None:
        given = features_of(work, bare, photographs.test)
        test_logits = whole.logits(torch.tensor(given.x))
        groups_of_test = photographs.test.groups
        test = main_metric(asked, photographs.test_name, test_logits, given.y, groups_of_test)
        for sentence in test_sentences(asked, test, seen, _of_last_token(bare, given), photographs):
            work.say(sentence)

    # How good it is on the held-out images, each by a fit without it; and the head that has learned
    # from none of them, for the average
    held_out = None
    if photographs.held_out is not None:
        count = len(photographs.train)
        averaged = classifier
        if reading.kind in (None, OF_THE_PAPER):  # of another reading there is no average
            train = Features(learned.x[:count], learned.y[:count])
            alone = solved(asked, train, photographs.train.groups)
            averaged = with_head(bare, alone, asked)
        logits = whole.left_out[count:]
        groups_of_held_out = photographs.held_out.groups
        y = learned.y[count:]
        held_out = candidate(CLOSED_FORM, averaged, asked, logits, y, groups_of_held_out)
    return First(asked, bare, classifier, left_out, held_out, test_logits, test)


def _of_last_token(bare: Classifier, found: Features) -> Features:
    """What tells whether two images look the same: the class token of the last block, of features of
    several. To middle blocks many are alike."""
    place = last_token(bare)
    if place is None:
        return found
    first, width = place
    return found._replace(x=found.x[:, first : first + width])


def _save_first(work: RunInputs, first: Classifier, learned: Features) -> None:
    """Save the model with the solved head, and what it has learned from, for `vitkit teach`."""
    folder = work.run_dir / MODEL
    source = work.photographs.learned
    save(first.to("cpu"), folder)
    is_here = not is_elsewhere(source)  # else every image would have to be fetched again
    if is_here and work.photographs.target_kind == "class":
        memory = remembered(source, learned, first.labels, work.plan.precision)
        write_memory(folder, memory, first)


# What is said of it

VERY_FEW = 4  # images of a class, below which one more makes a fit much better
FEW = 15  # images a class, up to which one more makes a fit better by a point or so
COMPARED = 10_000  # images to learn from that are compared with each other

NOBODY_KNOWS = (
    "its head is computed in closed form, not trained, from one image, or one burst, of each class: a "
    "fit without that knows nothing of the class, so how good it is cannot be said"
)

# What the main metric is called: of classes of unequal size, and of other targets
BALANCED = "balanced accuracy (the mean of the classes' own)"
MEANS = {"classes": "mean average precision", "number": "mean error"}


def left_out_sentences(
    asked: Probing, metric: Metric, learned: Features, source: Source
) -> list[str]:
    """How good the solved head is by fits without each image, or without its group; and what makes it look
    better than it is. source: the images that it has learned from."""
    groups = source.groups
    if asked.balanced:
        how_good = f"in cross-validation it has a {BALANCED} of {metric.text()}"
    elif asked.kind == "class":
        how_good = f"in cross-validation {metric.text()} of the images are classified correctly"
    else:
        how_good = f"in cross-validation it has a {MEANS[asked.kind]} of {metric.text()}"
    sentences = [f"its head is computed in closed form, not trained: {how_good}"]
    if asked.kind == "class":
        sentences[0] += _of_few(np.bincount(learned.y))
    blind = guess(asked, learned.y)
    if blind is not None and blind.explains(metric):
        sentences.append(
            f"that is not clearly better than a guess ({blind.words}): the features of these weights "
            "hardly know the classes"
        )
    if len(learned.x) <= COMPARED:
        alike = look_alikes(learned.x, groups=groups)
        sentences += _about_alike("to learn from", alike, source, source, "this is too good")
    return sentences


def _about_alike(
    what: str, alike: np.ndarray, looked_at: Source, learned: Source, consequence: str
) -> list[str]:
    """A sentence about images that look the same as others, by number, -1 for none, as `look_alikes` has
    them; none if there are no such. what: what the images are for."""
    repeated = np.flatnonzero(alike >= 0)
    if not len(repeated):
        return []
    i = int(repeated[0])
    pair = f"{looked_at.name(i)} and {learned.name(int(alike[i]))}"
    look = "looks"
    if len(repeated) > 1:
        look = "look"
    return [
        f"to the model {counted(len(repeated), 'image')} {what} {look} the same as another that it learns "
        f"from, such as {pair}: if these show one thing, {consequence}"
    ]


def _of_few(counts: np.ndarray) -> str:
    """What it means that a fit without an image has one of each class less, if classes have so many,
    (K,)."""
    least = counts[counts > 1].min()
    if least < VERY_FEW:
        return (
            "; each fit leaves out one image of each class, which is much of so few: the model itself, which "
            "has them all, may be ten points better"
        )
    if least < FEW:
        return (
            "; each fit leaves out one image of each class, so the model itself, which has them all, is a "
            "little better"
        )
    return ""


def test_sentences(
    asked: Probing,
    metric: Metric,
    learned: Features,
    given: Features,
    photographs: Photographs,
) -> list[str]:
    """How good the solved head is on images to test on, and how many of those are also learned from,
    for all that the model can see."""
    count = len(given.y)
    if asked.balanced:
        sentences = [f"on the {count:,} images to test on it has a {BALANCED} of {metric.text()}"]
        tested = np.unique(given.y)
        if len(tested) < len(asked.labels):
            sentences[0] += (
                f", of {counted(len(tested), 'class')} alone: none of these images is of the other "
                f"{len(asked.labels) - len(tested):,}"
            )
    elif asked.kind == "class":
        sentences = [f"it classifies {metric.text()} of the {count:,} test images correctly"]
    else:
        mean = MEANS[asked.kind]
        sentences = [f"on the {count:,} test images it has a {mean} of {metric.text()}"]
    alike = look_alikes(learned.x, given.x)
    of_these = "of these"
    assert photographs.test is not None  # the metric is of its images
    sentences += _about_alike(
        of_these, alike, photographs.test, photographs.learned, "that is too good"
    )
    return sentences


# What is reached without a look at an image, and whether a model is better than that


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
