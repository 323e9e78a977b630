"""Accuracy under common corruptions (Hendrycks & Dietterich 2019): noise, blur, weather and digital
damage, each at five severities.

The corruptions are those of the package imagecorruptions-imaug, a maintained fork of the authors' code.
An image is corrupted after it was resized and cropped for the model, as ImageNet-C's images were at
224 x 224; ImageNet-C then compressed them as JPEG, which is left out here.

Legend: C corruptions, S severities, N images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple, get_args

import numpy as np

from vitkit.data import Pixels, Preprocessing, Source, decoded
from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.metric import SHARE, Metric, share_right, with_intervals
from vitkit.system.console.progress import Shown, silent
from vitkit.system.errors import Unsupported

# The fifteen corruptions of ImageNet-C, then four that its authors reserve for the selection of methods
Corruption = Literal[
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
    "speckle_noise", "gaussian_blur", "spatter", "saturate",
]  # fmt: skip
COMMON: tuple[Corruption, ...] = get_args(Corruption)[:15]
SEVERITIES = (1, 2, 3, 4, 5)
SEEDED = ("impulse_noise", "glass_blur")  # corruptions that take a seed for their own generator
SMALLEST = 32  # shortest side, in pixels, of an image that can be corrupted
MEMORY = 1 << 30  # bytes of prepared images that are kept: 7,133 of 224 x 224


@dataclass(frozen=True, eq=False)
class PreparedStore:
    """A Store of a source's images, resized and cropped for a model."""

    source: Source
    preprocessing: Preprocessing

    def read(self, row: int) -> np.ndarray:
        """The image as uint8 (h, w, 3). Raises BadImage."""
        image = self.preprocessing(self.source.picture(row))
        return np.ascontiguousarray(image.permute(1, 2, 0).numpy())

    def name(self, row: int) -> str:
        return self.source.name(row)

    def identity(self, row: int) -> str:
        own = self.source.store.identity(int(self.source.rows[row]))
        return f"{own} {self.preprocessing}"

    def prepare(self, rows: np.ndarray) -> None:
        self.source.prepare()

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        return self.source.store.chunks(self.source.rows[rows])

    def keeping(self, chunks: int) -> "PreparedStore":
        return replace(self, source=self.source.keeping(chunks))


def prepare_once(
    source: Source,
    preprocessing: Preprocessing,
    limit: int = MEMORY,
    workers: int = 0,
    shown: Shown = silent,
) -> Source:
    """The source with its images resized and cropped for the model and kept in memory, if they take at
    most `limit` bytes; otherwise the source itself. `workers` processes prepare them in one pass. Raises
    BadImage with the image's name."""
    height, width = preprocessing.size
    if len(source) * height * width * 3 > limit:
        return source
    store = PreparedStore(source, preprocessing)
    prepared = replace(source, store=store, rows=np.arange(len(source)))
    kept = decoded(prepared, limit, workers, shown)
    if kept is prepared:  # `decoded` kept nothing: not shareable with processes, or read in chunks
        return source
    return kept


@dataclass(frozen=True, eq=False)
class Corrupted:
    """A Store of a source's images, resized and cropped for a model, and corrupted.

    The random numbers for an image depend on nothing but (seed, example): they are the same at all
    severities.
    """

    source: Source
    preprocessing: Preprocessing
    corruption: Corruption
    severity: int
    seed: int = 0

    def read(self, row: int) -> np.ndarray:
        """The corrupted image as uint8 (h, w, 3). Raises BadImage."""
        store = self.source.store
        if isinstance(store, Pixels):  # from `prepare_once`
            pixels = store.read(int(self.source.rows[row]))
        else:
            pixels = PreparedStore(self.source, self.preprocessing).read(row)
        draw = int(np.random.SeedSequence((self.seed, row)).generate_state(1)[0])
        return corrupted(pixels, self.corruption, self.severity, draw)

    def name(self, row: int) -> str:
        return self.source.name(row)

    def identity(self, row: int) -> str:
        own = self.source.store.identity(int(self.source.rows[row]))
        return f"{own} {self.corruption} {self.severity} {self.seed}"

    def prepare(self, rows: np.ndarray) -> None:
        """Import and compile the library here, so that forked processes share it."""
        self.source.prepare()
        corrupted(np.zeros((SMALLEST, SMALLEST, 3), np.uint8), self.corruption, self.severity, 0)

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        return self.source.store.chunks(self.source.rows[rows])

    def keeping(self, chunks: int) -> "Corrupted":
        return replace(self, source=self.source.keeping(chunks))


def corrupted(pixels: np.ndarray, corruption: Corruption, severity: int, seed: int) -> np.ndarray:
    """A corrupted copy of an image, uint8 (h, w, 3). The state of the global random generator is restored.

    A panorama at its own proportions may be one row of patches high: an image below SMALLEST is padded with
    its mirror image while it is corrupted.
    """
    import imagecorruptions

    height, width, _ = pixels.shape
    lacking = [(0, max(SMALLEST - height, 0)), (0, max(SMALLEST - width, 0)), (0, 0)]
    filled = np.pad(pixels, lacking, mode="symmetric")
    own = {"seed": seed} if corruption in SEEDED else {}
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        done = imagecorruptions.corrupt(filled, severity, corruption, **own)
    finally:
        np.random.set_state(before)
    return done[:height, :width]


def corrupt(
    source: Source, preprocessing: Preprocessing, corruption: Corruption, severity: int
) -> tuple[Source, Preprocessing]:
    """The source with corrupted images, and the preprocessing that they still need: normalisation."""
    store = Corrupted(source, preprocessing, corruption, severity)
    return replace(source, store=store, rows=np.arange(len(source))), uncropped(preprocessing)


def uncropped(preprocessing: Preprocessing) -> Preprocessing:
    """Preprocessing for square images: resizes the whole image to the model's size, without a crop.
    Preprocessing that keeps the proportions of images is unchanged."""
    if preprocessing.is_native:
        return preprocessing
    return replace(preprocessing, rule="square", resize=0)


def check_can_corrupt(preprocessing: Preprocessing) -> None:
    """Raises VitkitError for images that are too small, and if a library is missing."""
    try:
        import cv2
        import imagecorruptions  # noqa: F401
    except ModuleNotFoundError:
        raise Unsupported("`corruptions` needs: pip install 'vitkit[corruptions]'") from None
    except ImportError as error:
        # OpenCV loads system libraries that are often missing in containers and on servers
        raise Unsupported(
            f"`corruptions` cannot load its packages: {error}. OpenCV needs libraries of the "
            "system: apt-get install libgl1 libglib2.0-0, on Debian and Ubuntu"
        ) from None
    cv2.setNumThreads(1)  # several processes decode images in parallel
    if not preprocessing.is_native and min(preprocessing.size) < SMALLEST:
        height, width = preprocessing.size
        raise Unsupported(
            f"the model gets images of {height} x {width} pixels, and corruptions are made for "
            f"{SMALLEST} x {SMALLEST} and more"
        )


class Robustness(NamedTuple):
    """The accuracy of a model under corruptions."""

    clean: Metric | None
    """top1 on the clean images; None if it was not measured."""
    cells: dict[Corruption, tuple[Metric, ...]]
    """top1 of each corruption at each severity."""
    by_severity: tuple[Metric, ...]
    """The mean of top1 over corruptions, for each severity."""
    mean: Metric
    """The mean of top1 over corruptions and severities."""
    right: np.ndarray
    """Whether each image was classified right, as 0 and 1, float64 (C, S, N); NaN where logits are not
    finite."""
    errors: tuple[Metric, ...] = ()
    """On ImageNet-C's own files, errors divided by AlexNet's: their mean, then that of each corruption."""

    @property
    def metrics(self) -> list[Metric]:
        """The means, then every cell: corrupted/top1, corrupted/severity_1/top1,
        corrupted/fog/severity_1/top1."""
        cells = list(chain.from_iterable(self.cells.values()))
        return [*self.errors[:1], self.mean, *self.by_severity, *cells, *self.errors[1:]]

    def to_json(self) -> dict:
        """The fields as plain values, for JSON."""
        metrics = self.metrics
        if self.clean is not None:
            metrics = [self.clean, *metrics]
        return {metric.name: metric.to_json() for metric in metrics}


def robustness(
    clean: Metric | None,
    corruptions: Sequence[Corruption],
    ask: Callable[[Corruption, int], Answers],
) -> Robustness:
    """Measure each corruption at each severity. `ask` runs a model on the images with this corruption and
    severity.

    The intervals of means are computed by resampling images, which are the same for all corruptions. A
    metric of a cell with a logit that is not finite is NaN, and so are the means over it.
    """
    cells: dict[Corruption, tuple[Metric, ...]] = {}
    answered = []  # S arrays for each corruption, (N,)
    groups = None
    for corruption in corruptions:
        row = []
        for severity in SEVERITIES:
            given = ask(corruption, severity)
            groups = given.groups  # equal for all cells, which have the same images
            is_right = np.where(given.finite.all(), given.right, np.nan)
            name = f"corrupted/{corruption}/severity_{severity}/top1"
            row.append(share_right(name, is_right, groups))
            answered.append(is_right)
        cells[corruption] = tuple(row)

    # (C, S, N) -> the share of corruptions under which each image is right, (S, N)
    right = np.stack(answered).reshape(len(cells), len(SEVERITIES), -1)
    shares = right.mean(0)
    names = [f"corrupted/severity_{severity}/top1" for severity in SEVERITIES]
    *by_severity, mean = _means(shares, [*names, "corrupted/top1"], groups)
    if len(cells) == 1:  # the mean over one corruption is its cell, with the same interval
        by_severity = [replace(cell, name=name) for cell, name in zip(row, names, strict=True)]
    return Robustness(clean, cells, tuple(by_severity), mean, right)


def _means(shares: np.ndarray, names: Sequence[str], groups: np.ndarray | None) -> list[Metric]:
    """The mean over images for each severity, and the mean of these, with intervals.

    shares: share of corruptions under which each image is right, (S, N). names: of the S + 1 metrics.
    groups: the number of each image's group, (N,).
    """

    def figures(rows: np.ndarray) -> np.ndarray:
        means = shares[:, rows].mean(1)
        return np.append(means, means.mean())

    finite = bool(np.isfinite(shares).all())
    return with_intervals(dict.fromkeys(names, SHARE), figures, shares.shape[1], finite, groups)
