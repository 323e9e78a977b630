"""What a candidate is, and what its body makes of images: a body is a model below the head, in one
arithmetic, for one size of images. One pass of a body gives the states of all its blocks, and so the
features of every number of blocks; heads are solved for on these, so that they cost seconds.

Legend: N images, L blocks, S states of each, D width, K classes.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np
import torch

from vitkit.apps.faster.subjects import SearchSubject
from vitkit.data import Source, content_digest
from vitkit.evaluation import compute_features, features_within, rounded
from vitkit.exporting import Trial, calibration_images
from vitkit.exporting.exporting import size_of
from vitkit.models import (
    NESTED,
    OF_THE_PAPER,
    POOLS,
    FeatureSet,
    VisionTransformer,
    ViTConfig,
    check_can_merge,
    cost,
    parameters,
    tokens_left,
)
from vitkit.prediction import DataSetItems
from vitkit.runtimes import (
    ENDINGS,
    Export,
    FileRuntime,
    Runtime,
    described,
    eager,
    open_file,
    write,
)
from vitkit.runtimes.exported import Weights
from vitkit.runtimes.pytorch import FeaturesOnRuntime, answering_features
from vitkit.system.console.text import counted
from vitkit.system.errors import VitkitError
from vitkit.system.machine import Precision, autocast
from vitkit.weights import Classifier, adopt
from vitkit.weights.adoption import rebuilt, with_zero_head

CPU = torch.device("cpu")
SHORTER = (11 / 12, 10 / 12, 8 / 12, 6 / 12)  # of a model's blocks that are left
SMALLER = (7 / 8, 3 / 4, 5 / 8)  # of the side of its images
MERGED = (1 / 24, 1 / 12)  # of its patches, in every block
READ = 4  # blocks that the head of a shorter model reads, at least
SOLVED = 2_048  # images, or numbers a head reads: of more of both it takes long to solve for


Library = Literal["torch", "onnx", "openvino"]


class Arithmetic(NamedTuple):
    """The runtime that computes a model, and its precision."""

    library: Library
    precision: Weights
    is_calibrated: bool = False
    """Whether images have fixed the ranges of int8, where they need not."""

    @property
    def of_pytorch(self) -> Precision:
        """The precision of one that PyTorch computes."""
        assert self.precision == "float32" or self.precision == "bfloat16"  # it has no other
        return self.precision

    def __str__(self) -> str:
        name = {"torch": "PyTorch", "onnx": "ONNX Runtime", "openvino": "OpenVINO"}[self.library]
        calibrated = ", calibrated" if self.is_calibrated else ""
        return f"{name} {self.precision}{calibrated}"


class Shape(NamedTuple):
    """The size of a candidate: how much of the model it computes."""

    image: tuple[int, int]
    """Height and width of the images."""
    blocks: int
    """The first so many."""
    merge: int = 0
    """Tokens that are merged in every block."""

    def text(self, full: "Shape") -> str:
        """In words: how the candidate is smaller than the whole model, or "the whole model"."""
        words = []
        if self.blocks < full.blocks:
            words.append(counted(self.blocks, "block"))
        if self.image != full.image:
            words.append(f"{self.image[0]} x {self.image[1]}")
        if self.merge:
            words.append(f"{self.merge} merged")
        return ", ".join(words) or "the whole model"


class Variant(NamedTuple):
    """A model that may be faster."""

    arithmetic: Arithmetic
    shape: Shape

    @property
    def key(self) -> str:
        """The key of the candidate in a file."""
        return f"{self.arithmetic}; {self.shape.image}; {self.shape.blocks}; {self.shape.merge}"


def whole(classifier: Classifier) -> Shape:
    """The shape of the whole model."""
    config = classifier.model.config
    height, width = classifier.preprocessing.size
    return Shape((height, width), getattr(config, "depth", 0))


def shapes(classifier: Classifier, can_merge: bool) -> list[Shape]:
    """The whole model, and what can be left out of it, what changes least first."""
    full = whole(classifier)
    found = [full]
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        return found

    # Fewer blocks, on images of each size
    sides = [full.image]
    if config.position_kind.any_grid:
        for share in SMALLER:
            height, width = full.image
            image = config.fitting((round(share * height), round(share * width)))
            if image not in sides:
                sides.append(image)
    depths = [full.blocks]
    if can_be_shorter(classifier):
        for share in SHORTER:
            blocks = round(share * full.blocks)
            if 0 < blocks < depths[-1]:
                depths.append(blocks)
    found = [Shape(image, blocks) for image in sides for blocks in depths]

    # Tokens merged, of which a head reads the class token alone
    if can_merge and can_be_shorter(classifier):
        patches = (full.image[0] // config.tiling.size[0]) * (
            full.image[1] // config.tiling.size[1]
        )
        reading_token = _with_reading(classifier, OF_THE_PAPER)
        for share in MERGED:
            merge = round(share * patches)
            try:
                check_can_merge(reading_token.for_inference().model, merge)
            except VitkitError:
                continue
            shape = Shape(full.image, full.blocks, merge)
            if shape not in found:
                found.append(shape)
    return found


def can_be_shorter(classifier: Classifier) -> bool:
    """Whether heads can be solved for on the states of a model's blocks: of the paper's, whose head
    reads tokens of the last LayerNorm."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig) or not isinstance(classifier.model, VisionTransformer):
        return False
    reads_tokens = config.pooling.extends_class_token and not config.representation
    return reads_tokens and config.norm == "tokens" and config.resolved_inject != "every"


def operations(classifier: Classifier, shape: Shape) -> float:
    """Multiplications of an image, about: what foretells how long a shape takes beside another."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        return 1.0
    own = replace(
        config.resized(shape.image), depth=shape.blocks, pool=OF_THE_PAPER.pool, read_blocks=1
    )
    count = float(cost(own).macs)
    if shape.merge:
        tokens = 1 + own.grid[0] * own.grid[1]
        count *= (1 + tokens_left(own, shape.merge) / tokens) / 2  # they get fewer evenly
    return count


# What the head of a candidate reads


def own_reading(classifier: Classifier) -> FeatureSet:
    """The reading of the classifier's own head."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        return FeatureSet("gap")  # the mean of all places
    return FeatureSet(config.pool, config.read_blocks)


def reading_of(classifier: Classifier, shape: Shape, images: int) -> FeatureSet:
    """What the head of a shape reads: what the classifier's own does; of fewer blocks the mean of the
    patches too and READ blocks, which know what the last class token would have told."""
    own = own_reading(classifier)
    if shape.merge:
        return OF_THE_PAPER
    config = classifier.model.config
    if not isinstance(config, ViTConfig) or shape.blocks == config.depth:
        return own
    pool = own.pool
    if pool == OF_THE_PAPER.pool:
        pool = NESTED[1].name
    most = min(shape.blocks, max(own.blocks, READ))
    of_block = FeatureSet(pool).numbers(config.width)
    for blocks in (most, min(most, READ), 2, 1):
        if min(blocks * of_block, images) <= SOLVED:
            break
    return FeatureSet(pool, blocks)


def model_of(classifier: Classifier, shape: Shape, reads: FeatureSet) -> Classifier:
    """The classifier of a shape, whose head is one of zeros unless the shape is all of it; the weights
    are the classifier's own."""
    adopted, _ = adopt(classifier, image=shape.image)
    config = adopted.model.config
    if not isinstance(config, ViTConfig):
        return adopted
    if (shape.blocks, reads) == (config.depth, own_reading(classifier)):
        return adopted
    own = replace(config, depth=shape.blocks, pool=reads.pool, read_blocks=reads.blocks)
    model = rebuilt(adopted.model, own, zeros=r"head\.")
    return replace(adopted, model=model, unknown=None)


def _with_reading(classifier: Classifier, reads: FeatureSet) -> Classifier:
    """The classifier with a head of zeros that reads something else."""
    config = classifier.model.config
    assert isinstance(config, ViTConfig)  # as others have one reading
    own = replace(config, pool=reads.pool, read_blocks=reads.blocks)
    return replace(classifier, model=with_zero_head(classifier.model, own), unknown=None)


# A pass


@dataclass(frozen=True, eq=False)
class Body:
    """A model below the head, of all blocks, in one arithmetic, for one size of images."""

    subject: SearchSubject
    arithmetic: Arithmetic
    image: tuple[int, int]
    merge: int = 0

    @cached_property
    def widest(self) -> FeatureSet:
        """What a pass reads: of all blocks what a head may read of any number of them."""
        own = own_reading(self.subject.classifier)
        if self.merge:
            return OF_THE_PAPER
        if not can_be_shorter(self.subject.classifier):
            return own
        parts = set(POOLS[own.pool].reads)
        pool = next(pool for pool in NESTED[1:] if parts <= set(pool.reads))
        config = self.subject.classifier.model.config
        assert isinstance(config, ViTConfig)  # as can_be_shorter has said
        return FeatureSet(pool.name, config.depth)

    @cached_property
    def classifier(self) -> Classifier:
        """The model that computes the body; its head is not used."""
        adopted, _ = adopt(self.subject.classifier, image=self.image)
        if self.widest == own_reading(adopted):
            return adopted
        return _with_reading(adopted, self.widest)

    def states(self, source: Source) -> np.ndarray:
        """The states that the pass reads of every image, float32 (N, L S D); from the cache if they
        are in it."""
        arithmetic = self.arithmetic
        if arithmetic.library == "torch" and not self.merge:
            with autocast(CPU, arithmetic.of_pytorch):
                return compute_features(self.classifier.to(CPU).for_inference(), source).x
        with TemporaryDirectory(prefix="vitkit-") as folder:
            computed_by = f"{arithmetic} {self.merge}"
            if arithmetic.precision == "int8":
                computed_by += f" {content_digest(self.subject.for_calibration)}"
            runtime = _WhenAsked(self, Path(folder))
            model = FeaturesOnRuntime(self.classifier, runtime.logits, computed_by)
            own = replace(self.classifier, model=model)  # type: ignore[arg-type]  # in its place
            return compute_features(own, source).x

    def read(self, states: np.ndarray, shape: Shape, reads: FeatureSet) -> np.ndarray:
        """The features for the head of a shape, from these states: float32 (N, its width)."""
        if reads == self.widest:
            x = states
        else:
            config = self.subject.classifier.model.config
            assert isinstance(config, ViTConfig)  # as others have one reading
            x = features_within(states, self.widest, reads, config.width, shape.blocks)
        if reads != OF_THE_PAPER:
            x = rounded(x)  # as those of the first model of a folder are
        return np.ascontiguousarray(x)


class _WhenAsked:
    """A runtime that is exported when it is asked for the first time: states may be in the cache."""

    def __init__(self, body: Body, folder: Path):
        self.body = body
        self.folder = folder

    @cached_property
    def runtime(self) -> FileRuntime:
        answering = answering_features(self.body.classifier.to(CPU))
        trial = calibration(self.body.subject)
        path = exported(answering, self.body.arithmetic, self.body.merge, self.folder, trial)
        return open_file(path)

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self.runtime.logits(images)


def calibration(subject: SearchSubject, most: int | None = None) -> Trial:
    """The images that give the ranges of int8, the first of them or all, as an export takes them."""
    items = DataSetItems(subject.for_calibration, {}).items()[:most]
    return Trial(subject.where, items, items, learned=True)


def wanted(arithmetic: Arithmetic, merge: int) -> Export:
    """The export settings for an arithmetic."""
    calibrated = arithmetic.is_calibrated or (arithmetic.library, arithmetic.precision) == (
        "onnx",
        "int8",
    )
    return Export(
        arithmetic.library, arithmetic.precision, calibrated=calibrated, merge=merge, least=0.0
    )


def exported(
    classifier: Classifier, arithmetic: Arithmetic, merge: int, folder: Path, trial: Trial
) -> Path:
    """A classifier as a file in a folder, not tried yet."""
    asked = wanted(arithmetic, merge)
    path = folder / f"model{ENDINGS[arithmetic.library]}"
    exported = described(classifier, asked)
    write(classifier, exported, asked, path, calibration_images(exported, asked, trial))
    return path


def opened(
    classifier: Classifier, arithmetic: Arithmetic, merge: int, folder: Path, trial: Trial
) -> tuple[Runtime, float]:
    """The runtime of a classifier's logits in an arithmetic, and the megabytes of its file,
    which is written to a folder."""
    if arithmetic.library == "torch":
        megabytes = 4 * parameters(classifier.model) / 1e6
        return eager(classifier, CPU, arithmetic.of_pytorch), megabytes
    folder.mkdir(parents=True, exist_ok=True)
    path = exported(classifier, arithmetic, merge, folder, trial)
    return open_file(path), size_of(path) / 1e6
