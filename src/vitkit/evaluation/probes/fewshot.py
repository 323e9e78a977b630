"""Few-shot accuracy (Section 4.1): the accuracy of a closed-form linear layer on a few images per class
measures the quality of a model's features, where fine-tuning would cost too much.

The paper states neither the strength of the regularisation nor the preprocessing of features. Both
forms that its authors have published are implemented; they differ in l2 and in the choice of images:

- "fixed": big_vision's fewshot_lsr. l2 is 2^10; images are drawn at random.
- "ranked": the older form, nearer to the paper's date. l2 is the value from 2^-10 to 2^19 that ranks
  best over the data sets; images are the first ones of each class.

Legend: N training images, M test images, D width, K classes, L values of l2, S seeds.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Source, TargetKind, subset
from vitkit.evaluation.evaluator import Part, Subject
from vitkit.evaluation.metrics.metric import COUNT, DEVIATION, NUMBER, SHARE, Metric, share_interval
from vitkit.evaluation.probes.features import compute_features
from vitkit.evaluation.probes.ridge import ridge, targets
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData, BadSettings

FIXED = 10  # l2 = 2^10
GRID = tuple(range(-10, 20))  # the exponents of the older form
BIAS = 100.0  # value of the constant feature, so large that l2 hardly regularises it
EPSILON = 1e-5  # added to standard deviations
# Number of training images up to which the features of all are computed, and cached for other shots
WHOLE = 10_000

Form = Literal["fixed", "ranked"]


@dataclass(frozen=True)
class Fewshot:
    """The accuracy of a linear layer that is fitted to a few training images of each class."""

    shots: tuple[int, ...] = (5, 10)
    """Numbers of images per class; of a class with fewer images, all are used."""
    seeds: int = 3
    """Number of random draws of images; the accuracy is the mean over them. "ranked" draws none."""
    form: Form = "fixed"
    """How l2 and the images are chosen: "fixed" as in big_vision, "ranked" as at the time of the paper,
    which chooses l2 on the test images."""
    learns: ClassVar[bool] = True

    def __post_init__(self):
        if not self.shots or min(self.shots) < 1 or len(set(self.shots)) < len(self.shots):
            raise BadSettings(
                f"`shots` is {self.shots}; it is one or several different numbers of images per class, "
                "each at least 1"
            )
        if self.seeds < 1:
            raise BadSettings(
                f"`seeds` is {self.seeds}; it is the number of draws of images, at least 1"
            )

    def judges(self, target_kind: TargetKind) -> bool:
        """Whether every image has one class."""
        return target_kind == "class"

    def measure(self, subject: Subject, part: Part) -> Iterator[Metric]:
        """Yields for each number of shots its top1, such as 5-shot/top1, and with several seeds
        their standard deviation; for "ranked" the exponent of l2; and fewshot/seen, the number of
        test images.

        If any feature is not finite, top1 is NaN. Raises VitkitError if there are no training
        images, or images of one class only.
        """
        answers = self.answers(subject, part)
        for shots, right in answers.items():
            yield from self.metrics(shots, right, groups=part.source.groups)
        yield Metric("fewshot/seen", len(part.source), COUNT)

    def metrics(
        self,
        shots: int,
        right: np.ndarray | None,
        exponent: int | None = None,
        groups: np.ndarray | None = None,
    ) -> Iterator[Metric]:
        """The metrics of `answers` for one number of shots.

        right: which images are classified right, bool (S, L, M), as `answers` returns it.
        exponent: with "ranked", l2 is 2^exponent, chosen over several data sets; None chooses the best on
            these images, as the paper does.
        groups: images with the same number, (M,), are not independent.
        """
        name = f"{shots}-shot"
        if right is None:
            yield Metric(f"{name}/top1", math.nan, SHARE)
            return
        chosen = 0  # the index of l2 in L
        if self.form == "ranked":
            if exponent is None:
                exponent = best_ranked(right.mean((0, 2))[None])
            chosen = GRID.index(exponent)
        accuracies = right[:, chosen].mean(1)  # (S,)
        ends = interval(right[:, chosen], groups)
        yield Metric(f"{name}/top1", float(accuracies.mean()), SHARE, ends)
        if len(accuracies) > 1:
            yield Metric(f"{name}/deviation", float(accuracies.std(ddof=1)), DEVIATION)
        if self.form == "ranked":
            yield Metric(f"{name}/l2_exponent", GRID[chosen], NUMBER)

    def answers(self, subject: Subject, part: Part) -> dict[int, np.ndarray | None]:
        """Which test images are classified right, for each number of shots: bool (S, L, M), L being
        1 for "fixed"; None if any feature is not finite. Raises VitkitError as `measure` does."""
        train, test = _checked(part)

        # The indices of the images to learn from, by shots, then by seed
        draws = {}
        for shots in self.shots:
            seeds: Sequence[int | None] = range(self.seeds)
            if self.form == "ranked":
                seeds = [None]
            draws[shots] = [draw(train.target_array, shots, seed) for seed in seeds]

        # The features of these images, and of the test images
        is_finished = subject.learner is None
        needed = np.unique(np.concatenate(list(chain.from_iterable(draws.values()))))
        if is_finished and len(train) <= WHOLE:
            needed = np.arange(len(train))
        few = subset(train, needed)
        x, y = compute_features(subject.classifier, few, part.read(few), is_finished)
        x_test, y_test = compute_features(subject.classifier, test, part.batches, is_finished)
        if not np.isfinite(x).all() or not np.isfinite(x_test).all():
            return dict.fromkeys(self.shots)

        # A fit for each draw
        exponents: tuple[int, ...] = (FIXED,)
        if self.form == "ranked":
            exponents = GRID
        answers: dict[int, np.ndarray | None] = {}
        for shots in self.shots:
            right = []
            for rows in draws[shots]:
                own = np.searchsorted(needed, rows)
                predicted = predictions(x[own], y[own], x_test, len(test.labels), exponents)
                right.append(predicted == y_test)
            answers[shots] = np.stack(right)
        return answers


def draw(classes: np.ndarray, shots: int, seed: int | None) -> np.ndarray:
    """The indices of the images to learn from, from the classes (N,) of all: `shots` of each class, or as
    many as it has. They are drawn as big_vision draws them, or are the first ones if seed is None. int64,
    sorted by class."""
    random = np.random.default_rng(seed)
    drawn = []
    for number in range(int(classes.max()) + 1):
        members = np.flatnonzero(classes == number)
        if seed is not None:
            members = random.permutation(members)
        drawn.append(members[:shots])
    return np.concatenate(drawn)


def predictions(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    count: int,
    exponents: Sequence[int],
    dtype: type[np.floating] = np.float64,
) -> np.ndarray:
    """The predicted classes of test features (M, D), for each l2 = 2^exponent, by a fit to features (N, D)
    with classes (N,) of `count` in all: int64 (L, M).

    Features are standardised with the statistics of the training features, and a constant feature serves
    as the bias.

    In float32 this is the official code's arithmetic on a CPU, and the accuracies are equal. There
    the bias costs XᵀX its last digits: the prediction for a few test images with two close classes depends
    on the last bits of the features, in the official code too.
    """
    # With numpy, which sums row after row as the official code does; torch's order gives other last bits
    x = x.astype(dtype)
    mean = x.mean(0)
    std = x.std(0) + dtype(EPSILON)
    rows = _with_bias((x - mean) / std)  # (N, D + 1)
    test_rows = _with_bias((x_test.astype(dtype) - mean) / std)  # (M, D + 1)
    fit = ridge(rows, targets(torch.from_numpy(y), count).to(rows.dtype))
    predicted = []
    for exponent in exponents:
        scores = test_rows @ fit.weights(2.0**exponent)  # (M, K)
        predicted.append(scores.argmax(1).numpy())
    return np.stack(predicted)


def best_ranked(accuracies: np.ndarray) -> int:
    """The exponent of l2 with the highest mean rank over data sets, from the accuracies (data sets, L) of
    GRID. Of equal accuracies, that of the larger l2 ranks higher.

    The accuracies are those of test images, so the best of 30 is a little optimistic.
    """
    ranks = accuracies.argsort(1, kind="stable").argsort(1, kind="stable")  # 0 is the worst
    return GRID[int(ranks.mean(0).argmax())]


def interval(right: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, float]:
    """The 95 % confidence interval of the mean accuracy, for other test images and other draws, from which
    answers are right, bool (S, M). groups: images with the same number, (M,), are not independent.

    It combines Wilson's interval for the images and Student's for the draws: their variances add up.
    """
    from scipy.stats import t

    seeds = len(right)
    mean = right.mean()
    low, high = share_interval(right.mean(0), groups)
    if seeds == 1:
        return low, high
    by_draws = t.ppf(0.975, seeds - 1) * right.mean(1).std(ddof=1) / math.sqrt(seeds)
    low = mean - math.hypot(mean - low, by_draws)
    high = mean + math.hypot(high - mean, by_draws)
    return float(max(low, 0.0)), float(min(high, 1.0))


def shot_notes(train: Source, test: Source, shots: int) -> list[str]:
    """Sentences about classes with fewer than `shots` training images, and test classes without any."""
    sentences = []
    count = len(train.labels)
    learned = np.bincount(train.target_array, minlength=count)
    tested = np.bincount(test.target_array, minlength=count)
    missing = np.flatnonzero((learned == 0) & (tested > 0))
    if len(missing):
        sentences.append(
            f"no training image has the class {some([train.labels[k] for k in missing])}, so "
            f"{counted(tested[missing].sum(), 'test image')} cannot be answered right"
        )
    fewer = np.flatnonzero((learned > 0) & (learned < shots))
    if len(fewer):
        sentences.append(
            f"{len(fewer)} of {(learned > 0).sum()} classes have fewer than {shots} training "
            f"images, which are all used ({some([train.labels[k] for k in fewer])})"
        )
    return sentences


def _checked(part: Part) -> tuple[Source, Source]:
    """The training and the test images. Raises VitkitError if either are missing, or there is one class."""
    train, test = part.train, part.source
    if train is None or not len(train):
        raise BadData(
            "few-shot accuracy needs training images; give a data set with a train part beside the "
            "part to measure on"
        )
    if not len(test):
        raise BadData("there is no image to evaluate on")
    if len(np.unique(train.target_array)) < 2:
        raise BadData(
            f"all {len(train):,} training images have the class {train.answer(0)}; a classifier "
            "needs two classes or more"
        )
    return train, test


def _with_bias(x: np.ndarray) -> Tensor:
    """(N, D) -> (N, D + 1), with the constant feature."""
    constant = np.full((len(x), 1), BIAS, x.dtype)
    return torch.from_numpy(np.concatenate([x, constant], 1))
