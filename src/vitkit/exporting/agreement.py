"""How far an exported file agrees with its model, on real images; and which images it is tried on, and
calibrated with.

Legend: B images of a batch, K classes, h w pixels of what the model gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from vitkit.curation import different
from vitkit.data import Source, parts_at, source_at
from vitkit.evaluation import tango, tied_answers, wilson
from vitkit.evaluation.metrics.ties import TIED
from vitkit.prediction import Item, prepared_images, spread
from vitkit.prediction.batches import pixels_of
from vitkit.prediction.calibration import CALIBRATED, items_of_source, to_calibrate
from vitkit.prediction.predictions import logits_and_strangeness
from vitkit.runtimes import FileRuntime, Runtime
from vitkit.runtimes.exported import Weights
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData
from vitkit.weights import activate_array

CROPS = 64  # of scikit-learn's two photographs
TRIED = 500  # images to try a file on, at most


class Trial(NamedTuple):
    """The images on which an exported file is checked."""

    name: str
    """Where they are from, for people."""
    items: Sequence[Item]
    """With the names of their classes, as the model has them, if they are known."""
    for_calibration: Sequence[Item]
    """Others, to calibrate with."""
    photographs: int | None = None
    """Of how many photographs they are parts; None if they are whole."""
    learned: bool = False
    """Whether the model has learned from those to calibrate with."""


def trial_on(
    data: str, labels: Sequence[str], tried: int = TRIED, calibrate: str | None = ""
) -> Trial:
    """The test part of a data set, whose name a person typed, to try a file on, and images to calibrate
    with.

    calibrate: another data set, whose training part, or all of which, is for that; None is nothing.
    By default it is the training part of `data`, and every second image if `data` has but one part:
    then it is tried on the others.
    """
    source = source_at(data, typed=True)
    items = items_of_source(source, labels)
    if calibrate is None:
        return Trial(data, spread(items, tried), ())
    if calibrate:
        return Trial(data, spread(items, tried), to_calibrate(calibrate))
    train = parts_at(data, typed=True).sources.get("train")
    if train is None or np.isin(train.rows, source.rows).any():
        return Trial(data, spread(items[1::2], tried), spread(items[::2], CALIBRATED))
    return Trial(data, spread(items, tried), spread(items_of_source(train, labels), CALIBRATED))


def own_trial(
    left_out: Source, learned: Source, labels: tuple[str, ...], name: str, tried: int = TRIED
) -> Trial:
    """The images of a model's own run: those that it left out to try a file on, and those that it learned
    from to calibrate with."""
    return Trial(
        f"images of {name} that its run left out",
        spread(items_of_source(left_out, labels), tried),
        spread(items_of_source(learned, labels), CALIBRATED),
        learned=True,
    )


def sample_trial() -> Trial:
    """Parts of two photographs that come with scikit-learn: a temple and a flower."""
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    generator = np.random.default_rng(0)
    items = []
    for i in range(2 * CROPS):
        photograph = photographs[i % 2]
        height, width = photograph.shape[:2]
        side = int(generator.integers(height // 3, height))
        top = int(generator.integers(0, height - side + 1))
        left = int(generator.integers(0, width - side + 1))
        part = np.ascontiguousarray(photograph[top : top + side, left : left + side])
        items.append(Item(f"part {i}", partial(np.asarray, part)))
    name = f"{CROPS} parts of scikit-learn's two photographs"
    return Trial(name, items[:CROPS], items[CROPS:], photographs=len(photographs))


# The agreement


BATCH = 32

# Largest difference of two probabilities, as a share of the larger, that the arithmetic of a precision cannot
# tell apart. Of the shorter numbers it is their spacing; int8 has as many bits as bfloat16
TOLERANCE: dict[Weights, float] = {
    "float32": TIED,
    "float16": 1e-3,
    "bfloat16": 0.01,
    "int8": 0.01,
}


@dataclass(frozen=True)
class Agreement:
    """The agreement of a file's answers with its model's."""

    data: str
    """Where the images are from."""
    images: int
    """How many there are."""
    photographs: int
    """How many of them are no copy, or nearly a copy, of another one, nor parts of one photograph."""
    same: float
    """The share of images with the same most likely class; a tie counts as the same."""
    largest: float
    """The largest difference of two probabilities, or of two outputs that are none."""
    mean: float
    """The mean difference."""
    scale: float
    """The largest output of the model."""
    cost: float = 0.0
    """Accuracy that the other answers cost by the model's own probabilities: the mean of what it
    gives to its answer less what it gives to the file's. An image between two classes counts
    little, whichever the file says, so a few hundred images tell a loss of half a point."""
    accuracy: float | None = None
    """How often the file is right; None if that is not known."""
    models_accuracy: float | None = None
    """How often the model is."""
    labelled: int = 0
    """Images whose right answer is known."""
    lost: int = 0
    """Images that the model alone is right on, without those of which float32 cannot tell two classes
    apart."""
    won: int = 0
    """Images that the file alone is right on, without the same."""
    unknown: float | None = None
    """The share of images that the file calls unknown; None without limits for that."""
    models_unknown: float | None = None
    """The share that the model does."""
    same_unknown: float | None = None
    """The share of which both say the same; images at the limit itself, to `tolerance`, count as
    the same."""
    ties: int = 0
    """Images for which the file names another class than the model, which gives both classes the
    same probability, to `tolerance`."""
    exact_ties: int = 0
    """Ties that float32 cannot tell apart either: no loss, whichever class is right."""
    tolerance: float = TIED
    """Largest difference of two probabilities that counts as a tie, as a share of the larger."""

    @property
    def interval_of_same(self) -> tuple[float, float]:
        """The interval at 95 % of the share of images with the same most likely class. Copies of a
        photograph count as one image here."""
        return wilson(self.same * self.photographs, self.photographs)

    @property
    def unchanged(self) -> float:
        """The share of images whose answer can be no loss. A tie may be one, unless it is exact."""
        return self.same - (self.ties - self.exact_ties) / self.images

    @property
    def interval_of_loss(self) -> tuple[float, float]:
        """The interval at 95 % of the accuracy that the file loses. Without right answers it is as
        wide as the share of changed answers, for each of them may be a loss or a gain."""
        if not self.labelled:
            most = 1 - wilson(self.unchanged * self.photographs, self.photographs)[0]
            return -most, most
        independent = self.photographs / self.images
        lost = self.lost * independent
        won = self.won * independent
        return tango(lost, won, self.labelled * independent)

    def images_text(self) -> str:
        """The number of images, as text: "64 images (of 2 photographs)"."""
        text = counted(self.images, "image")
        if self.photographs < self.images:
            text += f" (of {counted(self.photographs, 'photograph')})"
        return text

    def ties_text(self) -> str:
        """What `same` counts as ties, as text in parentheses; "" if there are none."""
        if not self.ties:
            return ""
        return (
            f" (counting {counted(self.ties, 'tie')}: two classes whose probabilities are, to the model, "
            f"less than {100 * self.tolerance:g} % apart)"
        )

    def __str__(self) -> str:
        """All of it in a sentence."""
        low, high = self.interval_of_same
        text = (
            f"{self.same:.1%} of {self.images_text()} have the same class, {100 * low:.1f} to {high:.1%} "
            f"at 95 % confidence{self.ties_text()}; probabilities differ by {self.largest:.2g} at most, "
            f"{self.mean:.2g} in the mean; by the model's own probabilities the others cost "
            f"{self.cost:.2%} of accuracy"
        )
        if self.accuracy is not None:
            least, most = self.interval_of_loss
            text += (
                f"; accuracy {self.accuracy:.1%}, of the model {self.models_accuracy:.1%}: a loss of "
                f"{100 * (self.lost - self.won) / self.labelled:.1f} points ({100 * least:.1f} to "
                f"{100 * most:.1f})"
            )
        if self.same_unknown is not None:
            text += (
                f"; it calls {self.unknown:.1%} of them unknown, the model {self.models_unknown:.1%}, and they "
                f"agree on {self.same_unknown:.1%}"
            )
        return text


def agree(model: Runtime, file: Runtime, trial: Trial, precision: Weights = "float32") -> Agreement:
    """Compute all images by a model and by an exported file, or another runtime. Images that cannot be
    read are left out.

    precision: that of the file's arithmetic, which decides what is a tie.

    Raises VitkitError if none can be.
    """
    tolerance = TOLERANCE[precision]
    items = trial.items
    expected = []
    given = []
    truths = []
    pictures = []
    unknown = []
    models_unknown = []
    starts = range(0, len(items), BATCH)
    for start in bar("comparing answers")(starts, len(starts)):
        batch = items[start : start + BATCH]
        images, readable = prepared_images(model.preprocessing, batch)
        if not readable:
            continue
        logits, strangeness = logits_and_strangeness(model, images)
        expected.append(activate_array(logits, model.activation))
        if isinstance(file, FileRuntime) and file.exported.takes_pictures:
            probabilities, files_strangeness = picture_answers(file, readable)
        else:
            logits, files_strangeness = logits_and_strangeness(file, images)
            probabilities = activate_array(logits, file.activation)
        given.append(probabilities)
        if strangeness is not None and files_strangeness is not None:
            models_unknown.append(strangeness)
            unknown.append(files_strangeness)
        truths += [item.truth for item in readable]
        for number in range(len(readable)):
            image = model.preprocessing.image_of(images, number)
            pictures.append(image.transpose(1, 2, 0))
    if not expected:
        raise BadData(f"none of the images of {trial.name} can be read")
    agreement = compared(
        np.concatenate(expected),
        np.concatenate(given),
        truths,
        model.labels,
        trial.name,
        tolerance,
    )
    photographs = trial.photographs
    if photographs is None:
        photographs = different(pictures)
    agreement = replace(agreement, photographs=photographs)
    if not unknown:
        return agreement
    strangeness = np.concatenate(models_unknown)
    by_model = strangeness > 0
    by_file = np.concatenate(unknown) > 0
    at_the_limit = np.abs(strangeness) <= tolerance * np.abs(strangeness).max()
    return replace(
        agreement,
        unknown=float(by_file.mean()),
        models_unknown=float(by_model.mean()),
        same_unknown=float(((by_file == by_model) | at_the_limit).mean()),
    )


def picture_answers(
    file: FileRuntime, items: Sequence[Item]
) -> tuple[np.ndarray, np.ndarray | None]:
    """The answers of a file that prepares images itself: it gets each picture as it is. Probabilities
    (N, K), and how strange each is, (N,), if the file says that."""
    probabilities = []
    strangeness = []
    for item in items:  # one by one, as their sizes differ
        picture = pixels_of(item)
        assert picture is not None  # it is a readable one
        # From such a file come probabilities, where others give logits
        of_one, strange = logits_and_strangeness(file, picture[None])
        probabilities.append(of_one)
        if strange is not None:
            strangeness.append(strange)
    if not strangeness:
        return np.concatenate(probabilities), None
    return np.concatenate(probabilities), np.concatenate(strangeness)


def compared(
    expected: np.ndarray,
    given: np.ndarray,
    truths: Sequence[str | None],
    labels: Sequence[str],
    data: str,
    tolerance: float = TIED,
) -> Agreement:
    """Two tables of probabilities, (N, K) each, side by side, of N images that are not alike. Classes
    whose probabilities differ by the tolerance at most are ties."""
    difference = np.abs(expected - given)
    likeliest = given.argmax(-1)  # (N,)
    models_likeliest = expected.argmax(-1)
    ties = tied_answers(expected, likeliest, tolerance)  # bool (N,)
    same = 0.0
    if np.isfinite(given).all():
        same = float(((likeliest == models_likeliest) | ties).mean())
    rows = np.arange(len(expected))
    costs = expected[rows, models_likeliest] - expected[rows, likeliest]
    known = set(labels)
    is_labelled = np.array([truth in known for truth in truths], dtype=bool)
    right = _right(likeliest, truths, labels)
    models_right = _right(models_likeliest, truths, labels)
    exact_ties = tied_answers(expected, likeliest)
    decided = ~exact_ties[is_labelled]  # the others are right or wrong by rounding alone
    accuracy = None
    models_accuracy = None
    if len(right):
        accuracy = float(right.mean())
        models_accuracy = float(models_right.mean())
    return Agreement(
        data=data,
        images=len(given),
        photographs=len(given),
        same=same,
        largest=float(difference.max()),
        mean=float(difference.mean()),
        scale=float(np.abs(expected).max()),
        cost=float(costs.mean()),
        accuracy=accuracy,
        models_accuracy=models_accuracy,
        labelled=len(right),
        lost=int((models_right & ~right & decided).sum()),
        won=int((right & ~models_right & decided).sum()),
        ties=int(ties.sum()),
        exact_ties=int(exact_ties.sum()),
        tolerance=tolerance,
    )


def _right(
    likeliest: np.ndarray, truths: Sequence[str | None], labels: Sequence[str]
) -> np.ndarray:
    """Whether the most likely class, (N,), is the true one, bool, of the images whose true class is one
    of the labels."""
    known = set(labels)
    right = []
    for k, truth in zip(likeliest, truths, strict=True):
        if truth in known:
            right.append(labels[k] == truth)
    return np.array(right, dtype=bool)
