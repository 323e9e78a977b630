"""Agreement of an exported file with its model on real images; and the images for checking and for
calibrating it.

Legend: B images of a batch, K classes, h w pixels of the model's input.
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
from vitkit.exporting.distances import Differences, classifier_with_map, distances
from vitkit.prediction import Item, prepared_images, spread
from vitkit.prediction.batches import pixels_of
from vitkit.prediction.calibration import CALIBRATED, items_of_source, to_calibrate
from vitkit.prediction.predictions import logits_and_strangeness
from vitkit.runtimes import FileRuntime, Runtime, Weights
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData
from vitkit.weights import activate_array

CROPS = 64  # crops of scikit-learn's two photographs
TRIED = 500  # largest number of images for checking a file


class Trial(NamedTuple):
    """The images for checking an exported file, and those for calibrating it."""

    name: str
    """Description of where the images come from, for messages."""
    items: Sequence[Item]
    """Images to check the file on, with true classes by the model's names where known."""
    for_calibration: Sequence[Item]
    """Other images, for calibration."""
    photographs: int | None = None
    """Number of photographs that the images were cropped from; None for whole images."""
    learned: bool = False
    """Whether the calibration images are training images of the model."""


def trial_on(
    data: str, labels: Sequence[str], tried: int = TRIED, calibrate: str | None = ""
) -> Trial:
    """The test part of the data set that a user named, for checking a file, and images for calibration.

    calibrate: another data set for calibration, of which the training part is used if there is one;
    None for no calibration. By default calibration uses the training part of `data`, or every second
    image if `data` has only one part: then the file is checked on the other images.
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
    """The images of a model's own run: held-out images for checking a file, training images for
    calibration."""
    return Trial(
        f"images of {name} that its run left out",
        spread(items_of_source(left_out, labels), tried),
        spread(items_of_source(learned, labels), CALIBRATED),
        learned=True,
    )


def sample_trial() -> Trial:
    """Crops of two photographs that come with scikit-learn: a temple and a flower."""
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

# Largest relative difference of two probabilities that is within a precision's rounding. For the short
# floating-point formats it is their spacing; int8 has as many bits as bfloat16
TOLERANCE: dict[Weights, float] = {
    "float32": TIED,
    "float16": 1e-3,
    "bfloat16": 0.01,
    "int8": 0.01,
}


@dataclass(frozen=True)
class Agreement:
    """The agreement of a file's predictions with its model's."""

    data: str
    """Where the images come from."""
    images: int
    """Number of images."""
    photographs: int
    """Number of independent images: near-duplicates, and crops of one photograph, count once."""
    same: float
    """Share of images with the same most likely class; a tie counts as the same."""
    largest: float
    """Largest difference of two probabilities, or of two outputs that are not probabilities."""
    mean: float
    """Mean difference of probabilities or outputs."""
    scale: float
    """Largest output of the model."""
    cost: float = 0.0
    """Accuracy that the changed predictions cost by the model's own probabilities: the mean of the
    probability of the model's class minus that of the file's class. An image between two classes counts
    little, so a few hundred images can show a loss of half a point."""
    accuracy: float | None = None
    """Accuracy of the file; None if the true classes are unknown."""
    models_accuracy: float | None = None
    """Accuracy of the model; None if the true classes are unknown."""
    labelled: int = 0
    """Number of images with a known true class."""
    lost: int = 0
    """Number of images that only the model classifies correctly, without exact ties."""
    won: int = 0
    """Number of images that only the file classifies correctly, without exact ties."""
    unknown: float | None = None
    """Share of images that the file rejects as unknown; None without rejection thresholds."""
    models_unknown: float | None = None
    """Share of images that the model rejects as unknown; None without rejection thresholds."""
    same_unknown: float | None = None
    """Share of images on whose rejection file and model agree; images at the threshold, within
    `tolerance`, count as agreement."""
    ties: int = 0
    """Number of images for which the file's class differs from the model's, and the model's probabilities
    of the two classes are equal within `tolerance`."""
    exact_ties: int = 0
    """Number of ties within the rounding of float32; such a tie never counts as a loss."""
    tolerance: float = TIED
    """Largest relative difference of two probabilities that counts as a tie."""
    scores: float | None = None
    """Largest difference of two anomaly scores; None for a model that is not one of good images."""
    maps: float | None = None
    """Largest difference of two distances in an anomaly map; None for a model that is not one of good images."""
    resizes: bool = False
    """Whether the file resizes pictures itself, so that their levels may differ by one."""
    unit: str = "image"
    """What has a class: an image, or a pixel, of which `images` are compared then."""
    of_numbers: bool = False
    """Whether the outputs are numbers, such as those of a regression, of which none is the answer."""
    spread: float = 0.0
    """Standard deviation of the model's outputs over the images, of the output that varies most."""

    @property
    def farthest(self) -> float:
        """The larger of `scores` and `maps`, NaN if one of them is; 0 without these."""
        if self.scores is None or self.maps is None:
            return 0.0
        return float(np.maximum(self.scores, self.maps))

    @property
    def interval_of_same(self) -> tuple[float, float]:
        """The 95 % confidence interval of the share of images with the same most likely class.
        Copies of a photograph count as one image here."""
        return wilson(self.same * self.photographs, self.photographs)

    @property
    def unchanged(self) -> float:
        """The share of images whose predictions cannot be a loss: unchanged ones, and exact ties."""
        return self.same - (self.ties - self.exact_ties) / self.images

    @property
    def interval_of_loss(self) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy that the file loses. Without true classes it is as
        wide as the share of changed predictions, because each of them may be a loss or a gain."""
        if not self.labelled:
            most = 1 - wilson(self.unchanged * self.photographs, self.photographs)[0]
            return -most, most
        independent = self.photographs / self.images
        lost = self.lost * independent
        won = self.won * independent
        return tango(lost, won, self.labelled * independent)

    def images_text(self) -> str:
        """The number of images, as text: "64 images (of 2 photographs)"."""
        text = counted(self.images, self.unit)
        if self.photographs < self.images:
            text += f" (of {counted(self.photographs, 'photograph')})"
        return text

    def ties_text(self) -> str:
        """The number of ties that `same` includes, as text in parentheses; "" if there are none."""
        if not self.ties:
            return ""
        return (
            f" (counting {counted(self.ties, 'tie')}: two classes whose probabilities are, to the model, "
            f"less than {100 * self.tolerance:g} % apart)"
        )

    def __str__(self) -> str:
        """All figures in a sentence."""
        if self.of_numbers:
            return (
                f"outputs for {self.images_text()} differ by {self.largest:.2g} at most, {self.mean:.2g} in the "
                f"mean; those of the model vary by {self.spread:.2g} (standard deviation) from image to image, and "
                f"the largest is {self.scale:.3g}"
            )
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
        if self.scores is not None:
            text += (
                f"; anomaly scores differ by {self.scores:.2g} at most, and distances of patches by "
                f"{self.maps:.2g}"
            )
        return text


def agree(model: Runtime, file: Runtime, trial: Trial, precision: Weights = "float32") -> Agreement:
    """Compare an exported file, or another runtime, with a model on the trial's images. Unreadable images
    are left out.

    precision: of the file's arithmetic; it determines what counts as a tie.

    Raises VitkitError if no image is readable.
    """
    tolerance = TOLERANCE[precision]
    items = trial.items
    expected = []
    given = []
    truths = []
    pictures = []
    unknown = []
    models_unknown = []
    apart: Differences | None = None
    remembers = classifier_with_map(model, file)
    size = BATCH
    maps = isinstance(file, FileRuntime) and file.exported.segments
    takes_pictures = isinstance(file, FileRuntime) and file.exported.takes_pictures
    if maps:  # of images of one size
        size = 1
    starts = range(0, len(items), size)
    for start in bar("comparing answers")(starts, len(starts)):
        batch = items[start : start + size]
        images, readable = prepared_images(model.preprocessing, batch)
        if not readable:
            continue
        if maps:
            expected.append(pixels_of_maps(model, images))
            given.append(pixels_of_maps(file, images))
            pictures.append(model.preprocessing.image_of(images, 0).transpose(1, 2, 0))
            continue
        if remembers is not None:
            assert isinstance(file, FileRuntime)  # classifier_with_map has checked this
            found = distances(remembers, file, images, readable)
            apart = found.differences if apart is None else apart.and_those(found.differences)
            logits, strangeness = found.logits, None
            probabilities, files_strangeness = found.answers, None
            if not takes_pictures:
                probabilities = activate_array(probabilities, file.activation)
        else:
            logits, strangeness = logits_and_strangeness(model, images)
            if takes_pictures:
                assert isinstance(file, FileRuntime)
                probabilities, files_strangeness = picture_answers(file, readable)
            else:
                outputs, files_strangeness = logits_and_strangeness(file, images)
                probabilities = activate_array(outputs, file.activation)
        expected.append(activate_array(logits, model.activation))
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
        truths or [None] * sum(map(len, given)),
        model.labels,
        trial.name,
        tolerance,
    )
    photographs = trial.photographs
    if photographs is None:
        photographs = different(pictures)
    agreement = replace(
        agreement, photographs=photographs, of_numbers=model.activation == "none" and not maps
    )
    if apart is not None:
        assert isinstance(file, FileRuntime)
        resizes = file.exported.takes_pictures
        agreement = replace(agreement, scores=apart.scores, maps=apart.maps, resizes=resizes)
    if maps:
        return replace(agreement, unit="pixel")
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


EVERY = 8  # rows and columns of pixels, of which one is compared


def pixels_of_maps(runtime: Runtime, images: np.ndarray) -> np.ndarray:
    """The probabilities of some pixels of one image, (1, 3, h, w), by a model that classifies every pixel:
    (n, K)."""
    maps = runtime.logits(images)[0, :, ::EVERY, ::EVERY]  # (K, rows, columns)
    return activate_array(maps.reshape(len(maps), -1).T, runtime.activation)


def picture_answers(
    file: FileRuntime, items: Sequence[Item]
) -> tuple[np.ndarray, np.ndarray | None]:
    """The predictions of a file with built-in preprocessing, which receives unprepared pictures of any
    size: probabilities (N, K), and out-of-distribution scores (N,) if the file computes them."""
    probabilities = []
    strangeness = []
    for item in items:  # one by one, because their sizes differ
        picture = pixels_of(item)
        assert picture is not None  # the caller passes readable items only
        # Such a file returns probabilities where others return logits
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
    """Compare two tables of probabilities, (N, K) each, of N independent images. Classes of which the
    relative difference in probability is at most `tolerance` are ties."""
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
    decided = ~exact_ties[is_labelled]  # rounding decides the predictions of exact ties
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
        spread=float(expected.std(0).max()),
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
    """Whether the most likely class is the true one, bool, of those images whose true class is one of the
    labels. likeliest: class numbers, (N,)."""
    known = set(labels)
    right = []
    for k, truth in zip(likeliest, truths, strict=True):
        if truth in known:
            right.append(labels[k] == truth)
    return np.array(right, dtype=bool)
