"""Candidates, and the features that their backbones compute. A body is a backbone (a model without
its head) in one runtime and precision, for one image size. One forward pass of it gives the states
of all blocks, and so the features for every number of blocks; heads are fitted on these, which
takes seconds.

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
    Weights,
    described,
    eager,
    open_file,
    write,
)
from vitkit.runtimes.pytorch import FeaturesOnRuntime, answering_features
from vitkit.system.console.text import counted
from vitkit.system.errors import VitkitError
from vitkit.system.machine import Precision, autocast
from vitkit.weights import Classifier, adopt, rebuilt
from vitkit.weights.adoption import with_zero_head

CPU = torch.device("cpu")
SHORTER = (11 / 12, 10 / 12, 8 / 12, 6 / 12)  # shares of the model's blocks that are kept
SMALLER = (7 / 8, 3 / 4, 5 / 8)  # factors of the side of its images
MERGED = (1 / 24, 1 / 12)  # shares of its patches that are merged in every block
READ = 4  # smallest number of blocks that the head of a shorter model reads
SOLVED = 2_048  # if both images and features exceed this number, a closed-form head takes too long


Library = Literal["torch", "onnx", "openvino"]


class Arithmetic(NamedTuple):
    """The runtime that computes a model, and its precision."""

    library: Library
    precision: Weights
    is_calibrated: bool = False
    """Whether int8 ranges are fixed by calibration images although the library does not need that."""

    @property
    def of_pytorch(self) -> Precision:
        """The precision, for an arithmetic of PyTorch."""
        assert (
            self.precision == "float32" or self.precision == "bfloat16"
        )  # PyTorch has no other here
        return self.precision

    def __str__(self) -> str:
        name = {"torch": "PyTorch", "onnx": "ONNX Runtime", "openvino": "OpenVINO"}[self.library]
        calibrated = ", calibrated" if self.is_calibrated else ""
        return f"{name} {self.precision}{calibrated}"


class Shape(NamedTuple):
    """The size of a candidate: the part of the model that it computes."""

    image: tuple[int, int]
    """Height and width of the images, in pixels."""
    blocks: int
    """Number of leading blocks to keep."""
    merge: int = 0
    """Number of tokens that are merged in every block."""

    def text(self, full: "Shape") -> str:
        """The differences from the whole model as text, or "the whole model"."""
        words = []
        if self.blocks < full.blocks:
            words.append(counted(self.blocks, "block"))
        if self.image != full.image:
            words.append(f"{self.image[0]} x {self.image[1]}")
        if self.merge:
            words.append(f"{self.merge} merged")
        return ", ".join(words) or "the whole model"


class Variant(NamedTuple):
    """A candidate: a shape of the model in one arithmetic."""

    arithmetic: Arithmetic
    shape: Shape

    @property
    def key(self) -> str:
        """The candidate's key in the cache file."""
        return f"{self.arithmetic}; {self.shape.image}; {self.shape.blocks}; {self.shape.merge}"


def whole(classifier: Classifier) -> Shape:
    """The shape of the whole model."""
    config = classifier.model.config
    height, width = classifier.preprocessing.size
    return Shape((height, width), getattr(config, "depth", 0))


def shapes(classifier: Classifier, can_merge: bool) -> list[Shape]:
    """All shapes of candidates, from the whole model to those that change most."""
    full = whole(classifier)
    found = [full]
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        return found

    # Fewer blocks, for each image size
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

    # Token merging, for heads that read the class token only
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
    """Whether heads can be fitted on the states of a model's blocks: for models like the paper's, whose
    head reads tokens after the last LayerNorm."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig) or not isinstance(classifier.model, VisionTransformer):
        return False
    reads_tokens = config.pooling.extends_class_token and not config.representation
    return reads_tokens and config.norm == "tokens" and config.resolved_inject != "every"


def operations(classifier: Classifier, shape: Shape) -> float:
    """Approximate multiplications per image, for estimating the relative time of a shape."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        return 1.0
    own = replace(
        config.resized(shape.image), depth=shape.blocks, pool=OF_THE_PAPER.pool, read_blocks=1
    )
    count = float(cost(own).macs)
    if shape.merge:
        tokens = 1 + own.grid[0] * own.grid[1]
        count *= (
            1 + tokens_left(own, shape.merge) / tokens
        ) / 2  # the number of tokens falls linearly
    return count


# The feature set of a candidate's head


def own_reading(classifier: Classifier) -> FeatureSet:
    """The feature set of the classifier's own head."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        return FeatureSet("gap")  # the mean over all positions
    return FeatureSet(config.pool, config.read_blocks)


def reading_of(classifier: Classifier, shape: Shape, images: int) -> FeatureSet:
    """The feature set of a shape's head: the classifier's own; with fewer blocks also the mean of
    the patches and READ blocks, which make up for the missing last class token."""
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
    """The classifier of a shape with the classifier's own weights. Its head is all-zero unless the
    shape is the whole model."""
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
    """The classifier with an all-zero head for another feature set."""
    config = classifier.model.config
    assert isinstance(config, ViTConfig)  # other models have one feature set only
    own = replace(config, pool=reads.pool, read_blocks=reads.blocks)
    return replace(classifier, model=with_zero_head(classifier.model, own), unknown=None)


# The forward pass


@dataclass(frozen=True, eq=False)
class Body:
    """A backbone of all blocks, in one arithmetic, for one image size."""

    subject: SearchSubject
    arithmetic: Arithmetic
    image: tuple[int, int]
    merge: int = 0

    @cached_property
    def widest(self) -> FeatureSet:
        """The feature set of a forward pass, which contains those of all heads for any number of
        blocks."""
        own = own_reading(self.subject.classifier)
        if self.merge:
            return OF_THE_PAPER
        if not can_be_shorter(self.subject.classifier):
            return own
        parts = set(POOLS[own.pool].reads)
        pool = next(pool for pool in NESTED[1:] if parts <= set(pool.reads))
        config = self.subject.classifier.model.config
        assert isinstance(config, ViTConfig)  # can_be_shorter requires it
        return FeatureSet(pool.name, config.depth)

    @cached_property
    def classifier(self) -> Classifier:
        """The classifier that contains the backbone; its head is not used."""
        adopted, _ = adopt(self.subject.classifier, image=self.image)
        if self.widest == own_reading(adopted):
            return adopted
        return _with_reading(adopted, self.widest)

    def states(self, source: Source) -> np.ndarray:
        """The states that `widest` contains, for every image, float32 (N, L S D); from the cache if
        possible."""
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
            own = replace(self.classifier, model=model)  # type: ignore[arg-type]  # in place of its model
            return compute_features(own, source).x

    def read(self, states: np.ndarray, shape: Shape, reads: FeatureSet) -> np.ndarray:
        """The features for the head of a shape, selected from these states: float32 (N, width of
        the features)."""
        if reads == self.widest:
            x = states
        else:
            config = self.subject.classifier.model.config
            assert isinstance(config, ViTConfig)  # other models have one feature set only
            x = features_within(states, self.widest, reads, config.width, shape.blocks)
        if reads != OF_THE_PAPER:
            x = rounded(x)  # as the features of `vitkit finetune` are
        return np.ascontiguousarray(x)


class _WhenAsked:
    """A runtime that is exported at its first use, since the states may be in the cache."""

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
    """The trial with the calibration images for int8: the first `most` of them, or all."""
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
    """Export a classifier to a folder, without a check; returns the file."""
    asked = wanted(arithmetic, merge)
    path = folder / f"model{ENDINGS[arithmetic.library]}"
    exported = described(classifier, asked)
    write(classifier, exported, asked, path, calibration_images(exported, asked, trial))
    return path


def opened(
    classifier: Classifier, arithmetic: Arithmetic, merge: int, folder: Path, trial: Trial
) -> tuple[Runtime, float]:
    """Export a classifier to a folder, and open it; returns the runtime of its logits, and the
    megabytes of its file."""
    if arithmetic.library == "torch":
        megabytes = 4 * parameters(classifier.model) / 1e6
        return eager(classifier, CPU, arithmetic.of_pytorch), megabytes
    folder.mkdir(parents=True, exist_ok=True)
    path = exported(classifier, arithmetic, merge, folder, trial)
    return open_file(path), size_of(path) / 1e6
