"""Accuracy under common corruptions (Hendrycks & Dietterich 2019): noise, blur, weather and digital
damage, each at five severities.

The corruptions are those of the package imagecorruptions-imaug, the kept form of the authors' code.
An image is corrupted as the model gets it, at the model's own size, as ImageNet-C's images were at
224 x 224; ImageNet-C then stored them as JPEG, which is left out here.

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

# The fifteen of ImageNet-C, then four that its authors keep for choosing between methods
Corruption = Literal[
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
    "speckle_noise", "gaussian_blur", "spatter", "saturate",
]  # fmt: skip
COMMON: tuple[Corruption, ...] = get_args(Corruption)[:15]
SEVERITIES = (1, 2, 3, 4, 5)
SEEDED = ("impulse_noise", "glass_blur")  # which draw from a generator of their own
SMALLEST = 32  # pixels a side
MEMORY = 1 << 30  # bytes of prepared images that are kept: 7,133 of 224 x 224


@dataclass(frozen=True, eq=False)
class PreparedStore:
    """The images of a source as a model gets them: a Store."""

    source: Source
    preprocessing: Preprocessing

    def read(self, row: int) -> np.ndarray:
        """uint8 (h, w, 3). Raises BadImage."""
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
    """The images of a source as a model gets them, kept in memory by one pass of `workers`
    processes if they take at most `limit` bytes; else the source as it is. Raises BadImage with the
    image's name."""
    height, width = preprocessing.size
    if len(source) * height * width * 3 > limit:
        return source
    store = PreparedStore(source, preprocessing)
    prepared = replace(source, store=store, rows=np.arange(len(source)))
    kept = decoded(prepared, limit, workers, shown)
    if kept is prepared:  # it cannot be shared with processes, or is read in chunks
        return source
    return kept


@dataclass(frozen=True, eq=False)
class Corrupted:
    """The images of a source as a model gets them, corrupted: a Store.

    The random numbers for an image follow only from (seed, example), and are the same at all
    severities.
    """

    source: Source
    preprocessing: Preprocessing
    corruption: Corruption
    severity: int
    seed: int = 0

    def read(self, row: int) -> np.ndarray:
        """uint8 (h, w, 3). Raises BadImage."""
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
    """uint8 (h, w, 3) -> the same, corrupted. The global random numbers stay what they are.

    A panorama at its own proportions may be one row of patches high: what it lacks to SMALLEST is filled
    with its mirror image while it is corrupted.
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
    """The corrupted images of a source, and the preprocessing that is left: normalisation."""
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
        # OpenCV loads libraries of the system that containers and servers are often without
        raise Unsupported(
            f"`corruptions` cannot load its packages: {error}. OpenCV needs libraries of the "
            "system: apt-get install libgl1 libglib2.0-0, on Debian and Ubuntu"
        ) from None
    cv2.setNumThreads(1)  # each process of several decodes images of its own
    if not preprocessing.is_native and min(preprocessing.size) < SMALLEST:
        height, width = preprocessing.size
        raise Unsupported(
            f"the model gets images of {height} x {width} pixels, and corruptions are made for "
            f"{SMALLEST} x {SMALLEST} and more"
        )


class Robustness(NamedTuple):
    """The accuracy of a model under corruptions."""

    clean: Metric | None
    """top1 on the images as they are; None if it was not measured."""
    cells: dict[Corruption, tuple[Metric, ...]]
    """By corruption, top1 at each severity."""
    by_severity: tuple[Metric, ...]
    """The mean over corruptions at each severity."""
    mean: Metric
    """The mean over corruptions and severities."""
    right: np.ndarray
    """Whether each image was answered right, as 0 and 1, float64 (C, S, N); NaN where logits are not
    finite."""
    errors: tuple[Metric, ...] = ()
    """On ImageNet-C's own files, errors in proportion to AlexNet's: their mean, then that of each
    corruption."""

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
    """Measure each corruption at each severity. `ask` runs a model on the images that are corrupted
    so.

    The intervals of means come from resampling images, which are the same for all corruptions. If a
    logit is not finite, what it belongs to is NaN.
    """
    cells: dict[Corruption, tuple[Metric, ...]] = {}
    answered = []  # S arrays of each corruption, (N,)
    groups = None
    for corruption in corruptions:
        row = []
        for severity in SEVERITIES:
            given = ask(corruption, severity)
            groups = given.groups  # of the same images
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
    if len(cells) == 1:  # the mean of one is itself, and so is its interval
        by_severity = [replace(cell, name=name) for cell, name in zip(row, names, strict=True)]
    return Robustness(clean, cells, tuple(by_severity), mean, right)


def _means(shares: np.ndarray, names: Sequence[str], groups: np.ndarray | None) -> list[Metric]:
    """The mean of each severity over images, and that of all, with intervals: (S, N), and the number of
    each image's group, (N,)."""

    def figures(rows: np.ndarray) -> np.ndarray:
        means = shares[:, rows].mean(1)
        return np.append(means, means.mean())

    finite = bool(np.isfinite(shares).all())
    return with_intervals(dict.fromkeys(names, SHARE), figures, shares.shape[1], finite, groups)
