"""The first model for a folder of photographs, made in seconds: a closed-form head on the features of a
pre-trained model."""

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
from vitkit.system.console.text import counted, some
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training.state.checkpoints import MODEL
from vitkit.weights import Classifier, save


@dataclass(frozen=True)
class First:
    """The first model: a head in closed form."""

    asked: Probing
    bare: Classifier
    """The pre-trained model with an all-zero head."""
    classifier: Classifier
    """The model with the head fitted to all training images, including held-out ones."""
    left_out: Metric
    held_out: Candidate | None
    """Leave-one-out quality on the held-out images, with a model fitted to none of them. None if no
    images are held out."""
    test_logits: Tensor | None
    """Logits of the test images, (N, K); None without test images."""
    test: Metric | None
    """Quality on the test images; None without test images."""


def closed_form(work: RunInputs, reading: FittedHead, is_saved: bool) -> First:
    """Make the model with the closed-form head, log its quality, and save it unless a model is
    already saved."""
    photographs = work.photographs
    asked, bare, learned, whole = reading

    # Leave-one-out predictions
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
    seen = _last_class_token(bare, learned)
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

    # On the test images
    test_logits = None
    test = None
    if photographs.test is not None:
        given = features_of(work, bare, photographs.test)
        test_logits = whole.logits(torch.tensor(given.x))
        groups_of_test = photographs.test.groups
        test = main_metric(asked, photographs.test_name, test_logits, given.y, groups_of_test)
        for sentence in test_sentences(
            asked, test, seen, _last_class_token(bare, given), photographs
        ):
            work.say(sentence)

    # Leave-one-out quality on the held-out images; and the head fitted to none of them, for the average
    # of weights
    held_out = None
    if photographs.held_out is not None:
        count = len(photographs.train)
        averaged = classifier
        if reading.kind in (None, OF_THE_PAPER):  # no average for other feature sets
            train = Features(learned.x[:count], learned.y[:count])
            alone = solved(asked, train, photographs.train.groups)
            averaged = with_head(bare, alone, asked)
        logits = whole.left_out[count:]
        groups_of_held_out = photographs.held_out.groups
        y = learned.y[count:]
        held_out = candidate(CLOSED_FORM, averaged, asked, logits, y, groups_of_held_out)
    return First(asked, bare, classifier, left_out, held_out, test_logits, test)


def _last_class_token(bare: Classifier, found: Features) -> Features:
    """The features for finding look-alike images: the class token of the last block, of features
    with several blocks. In middle blocks many different images have similar features."""
    place = last_token(bare)
    if place is None:
        return found
    first, width = place
    return found._replace(x=found.x[:, first : first + width])


def _save_first(work: RunInputs, first: Classifier, learned: Features) -> None:
    """Save the model with the fitted head and, for `vitkit teach`, its training features."""
    folder = work.run_dir / MODEL
    source = work.photographs.learned
    save(first.to("cpu"), folder)
    is_here = not is_elsewhere(source)  # else `teach` would have to fetch every image again
    if is_here and work.photographs.target_kind == "class":
        memory = remembered(source, learned, first.labels, work.plan.precision)
        write_memory(folder, memory, first)


# Messages about the first model

VERY_FEW = 4  # images per class, below which one more makes a fit much better
FEW = 15  # images per class, up to which one more makes a fit better by about a point
COMPARED = 10_000  # largest number of training images that are compared with each other

NOBODY_KNOWS = (
    "its head is computed in closed form, not trained, from one image, or one burst, of each class: a "
    "leave-one-out fit knows nothing of the class, so its accuracy cannot be estimated"
)

# Names of the main metric: for classes of unequal size, and for other targets
BALANCED = "balanced accuracy (the mean of the classes' own)"
MEANS = {"classes": "mean average precision", "number": "mean error"}


def left_out_sentences(
    asked: Probing, metric: Metric, learned: Features, source: Source
) -> list[str]:
    """Sentences about the leave-one-out quality of the head (leave-one-group-out with groups), and about
    anything that makes it optimistic. source: the training images."""
    groups = source.groups
    if asked.balanced:
        how_good = f"in cross-validation it has a {BALANCED} of {metric.text()}"
        if alone := _of_one_observation(learned.y, groups, asked.labels):
            how_good += f", without {some(alone)}, of which nothing would be left to learn from"
    elif asked.kind == "class":
        how_good = f"in cross-validation {metric.text()} of the images are classified correctly"
    else:
        how_good = f"in cross-validation it has a {MEANS[asked.kind]} of {metric.text()}"
    sentences = [f"its head is computed in closed form, not trained: {how_good}"]
    if asked.kind == "class":
        sentences[0] += _pessimism_of_few(np.bincount(learned.y))
    blind = guess(asked, learned.y)
    if blind is not None and blind.explains(metric):
        sentences.append(
            f"that is not clearly better than a guess ({blind.words}): the features of these weights "
            "hardly distinguish the classes"
        )
    if len(learned.x) <= COMPARED:
        alike = look_alikes(learned.x, groups=groups)
        sentences += _about_alike("to learn from", alike, source, source, "this is too good")
    return sentences


def _of_one_observation(
    y: np.ndarray, groups: np.ndarray | None, labels: tuple[str, ...]
) -> list[str]:
    """The classes of which all images are of one group, so that none can be left out and the class be known."""
    if groups is None:
        groups = np.arange(len(y))
    pairs = np.unique(np.stack([y, groups]), axis=1)  # (2, pairs of a class and a group)
    counts = np.bincount(pairs[0], minlength=len(labels))
    return [labels[k] for k in np.flatnonzero(counts == 1)]


def _about_alike(
    what: str, alike: np.ndarray, looked_at: Source, learned: Source, consequence: str
) -> list[str]:
    """At most one sentence about images that look the same as training images. alike: for each image the
    index of its look-alike, -1 for none, as `look_alikes` returns. what: the use of the images."""
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


def _pessimism_of_few(counts: np.ndarray) -> str:
    """A clause about the pessimism of leave-one-out fits, which lack one image per class, if classes are
    small. counts: images per class, (K,)."""
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
    """Sentences about the quality of the head on the test images, and about test images that look the
    same as training images."""
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
    assert photographs.test is not None  # else `metric` would not exist
    sentences += _about_alike(
        of_these, alike, photographs.test, photographs.learned, "that is too good"
    )
    return sentences


# The accuracy of constant guesses, and whether a model is better


ERRORS = 2  # standard errors above a guess up to which chance explains an accuracy


class Guess(NamedTuple):
    """The best constant prediction, which ignores the image, for targets of one class each."""

    value: float
    """The accuracy of the guess; balanced accuracy if classes have equal weight."""
    error: float
    """The standard error of a guess's accuracy on this number of images."""
    words: str
    """A description of the guess with its accuracy."""

    def explains(self, metric: Metric) -> bool:
        """Whether chance explains the metric, so the model may have learned nothing. False if even
        a model that is always correct could not be told from a guess, because there are too few
        images."""
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
