"""What `vitkit app` computes, without its page: photographs as a model gets them, answers, and what
the model looks at.

Everything here is a value, or a function of values, so that people who use the page at the same
time cannot meet each other's photographs.

Legend: (h, w) the grid of patches, H W the pixels that the model gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data import in_memory, open_image, picture_for_people
from vitkit.inspection import (
    check_has_attention,
    darkened,
    layer_names,
    logits_and_rollout,
    over_image,
    raw_attention,
    whole_pixels,
)
from vitkit.models import Grid, Tiling
from vitkit.prediction import Doubt, doubts, least_open, logits_and_strangeness
from vitkit.runtimes import OnRuntime, Runtime, check_answer, least_of, with_strangeness
from vitkit.system.console.text import counted
from vitkit.system.errors import BadImage, BadWeights, VitkitError
from vitkit.weights import Classifier, no_answer

LARGEST_FILE = 50 * 2**20  # bytes of a photograph; those of 100 megapixels have less
SHOWN = 640  # pixels of the longer side of a picture on the page
AMBER = np.array([255, 196, 0], np.uint8)  # is seen on dark and on bright
FRAME = 3  # pixels of the frame around a patch
DARKEST = 0.2  # of a patch that has no attention of one layer

SIDE_BY_SIDE = Tiling((1, 1), (1, 1))

# Decoders change limits of the whole process for a moment, and a model that is recorded has hooks:
# one photograph at a time. There are no more processors for two.
_ONE_AT_A_TIME = Lock()


@dataclass(frozen=True, eq=False)
class View:
    """A photograph as one model gets it."""

    images: Tensor
    """What the model computes with: uint8 (1, 3, H, W)."""
    pixels: np.ndarray
    """The same part of the photograph, to be shown: uint8 (h, w, 3), SHOWN pixels long."""
    tiling: Tiling = SIDE_BY_SIDE
    """How the model's patches lie over `images`, in any unit."""


@dataclass(frozen=True, eq=False)
class Photograph:
    """A file that somebody gave, decoded."""

    name: str
    data: bytes
    kind: str
    """Its format, such as JPEG."""
    views: tuple[View, ...]
    """One for each model of the page."""


class Answer(NamedTuple):
    """The answer of a model to a photograph."""

    classes: tuple[tuple[str, float], ...]
    """The most likely classes, best first, each with its probability (or what the activation "none"
    leaves); none for a model without a head."""
    rollout: np.ndarray | None
    """What it looks at, through all layers: float32 (h, w); None for a model without attention."""
    doubt: Doubt = Doubt()
    """What the model's limits say of the photograph, if it has any."""


@dataclass(frozen=True, eq=False)
class Viewer:
    """A model that answers photographs, for the page."""

    name: str
    """What people call it."""
    classifier: Classifier
    runtime: Runtime | None = None
    """What computes the answers; None is PyTorch. What the model looks at is PyTorch's always."""
    layers: tuple[str, ...] = field(init=False)
    """Names of its layers of attention; none for a model whose attention cannot be shown."""
    why_no_map: str = field(init=False)
    """A sentence that says why there is none, or nothing."""

    def __post_init__(self):
        """Raises VitkitError for a model that answers for each of its tokens."""
        layers = ()
        why_no_map = "an exported file gives its answers alone"
        if not isinstance(self.classifier.model, OnRuntime):
            check_answer(self.classifier)
            why_no_map = ""
            try:
                layers = layer_names(check_has_attention(self.classifier))
            except VitkitError as error:
                why_no_map = str(error)
        # object.__setattr__ is how a frozen dataclass sets its own fields.
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "why_no_map", why_no_map)

    @property
    def heads(self) -> int:
        """Attention heads of each layer; 0 for a model whose attention cannot be shown."""
        if not self.layers:
            return 0
        return self.classifier.model.config.heads

    def grid(self, view: View) -> Grid:
        """(h, w), the patches of a photograph as the model gets it."""
        return self.classifier.model.grid(view.images)

    @property
    def facts(self) -> str:
        """A description of the model, in half a line."""
        preprocessing = self.classifier.preprocessing
        height, width = preprocessing.size
        facts = [f"{height} × {width} pixels"]
        if preprocessing.is_native:
            facts = [f"whole photographs on up to {preprocessing.patches:,} patches"]
        if not self.classifier.labels:
            facts.insert(0, "no head, so it names no classes")
        elif no_answer(self.classifier):
            facts.insert(0, "a head of zeros, so it names no classes")
        else:
            facts.insert(0, counted(len(self.classifier.labels), "class"))
        if self.layers:
            facts.append(f"{len(self.layers)} layers of {counted(self.heads, 'head')}")
        return ", ".join(facts)

    def answer(self, view: View, top: int = 5) -> Answer:
        """The most likely classes, and what the model looks at. Raises VitkitError if the model
        computes numbers that are not finite."""
        with _ONE_AT_A_TIME:
            logits, strangeness, rollout = self._computed(view.images)
        if not torch.isfinite(logits).all():
            raise BadWeights("the model's outputs are not finite; its weights may be damaged")
        labels = self.classifier.labels
        if no_answer(self.classifier):
            return Answer((), rollout)
        probabilities = self.classifier.probabilities(logits)  # (1, K)
        (doubt,) = doubts(labels, self._least(), strangeness, probabilities.cpu().numpy())
        best = probabilities[0].topk(min(top, len(labels)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return Answer(tuple((labels[k], value) for k, value in pairs), rollout, doubt)

    def _runtime(self) -> Runtime | None:
        """What computes the answers, if it is not PyTorch."""
        if isinstance(self.classifier.model, OnRuntime):
            return self.classifier.model.runtime
        return self.runtime

    def _least(self) -> np.ndarray | None:
        """From which probability on classes are left open; None without limits."""
        runtime = self._runtime()
        if runtime is None:
            return least_of(self.classifier)
        return least_open(runtime)

    def _computed(self, images: Tensor) -> tuple[Tensor, np.ndarray | None, np.ndarray | None]:
        """uint8 (1, 3, H, W) -> logits (1, K); how strange the image is, (1,), if there are limits for
        that; and what the model looks at, (h, w), if it has attention."""
        rollout = None

        def computed() -> np.ndarray:
            """By PyTorch."""
            nonlocal rollout
            if self.layers:
                logits, maps = logits_and_rollout(self.classifier, images)
                rollout = maps[0].numpy()
            else:
                logits = self.classifier.logits(images)
            return logits.cpu().numpy()

        runtime = self._runtime()
        if runtime is not None:
            if self.layers:
                computed()
            logits, strangeness = logits_and_strangeness(runtime, images.cpu().numpy())
        elif self.classifier.unknown is not None:
            logits, strangeness = with_strangeness(self.classifier, computed)
        else:
            logits = computed()
            strangeness = None
        return torch.from_numpy(logits), strangeness, rollout

    def warm_up(self) -> None:
        """Compute once, so that the first photograph does not wait for preparations."""
        height, width = self.classifier.preprocessing.size
        preprocessing = self.classifier.preprocessing
        dtype = getattr(torch, preprocessing.values)
        images = torch.zeros(1, preprocessing.channels, height, width, dtype=dtype)
        self.answer(View(images, np.zeros((1, 1, 3), np.uint8)))

    def look(
        self, view: View, layer: int, head: int | None, query: tuple[int, int] | None
    ) -> np.ndarray:
        """Attention of one layer and head, or the mean of its heads, from a patch or from what the
        model's head reads, as `raw_attention` has it: float32 (h, w)."""
        with _ONE_AT_A_TIME:
            weights = raw_attention(self.classifier, view.images, layer, head, query)
        return weights[0].numpy()


def open_photograph(path: Path, name: str, viewers: Sequence[Viewer]) -> Photograph:
    """Decode a file that somebody gave, as each of the models gets it.

    Raises VitkitError, with a sentence, for one that is too large or not an image.
    """
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise BadImage(
            f"{name} has {size / 2**20:,.0f} MiB; photographs of up to {LARGEST_FILE // 2**20} MiB "
            "are accepted here"
        )
    data = path.read_bytes()
    with _ONE_AT_A_TIME:
        encoded = open_image(data, name)
        picture = in_memory(encoded)  # decoded once, for all models
        pixels = picture_for_people(picture)
        views = []
        for viewer in viewers:
            preprocessing = viewer.classifier.preprocessing
            rows, columns = whole_pixels(preprocessing.visible(picture), picture.size)
            visible = pixels[rows, columns]
            images = viewer.classifier.batch([picture])
            config = getattr(viewer.classifier.model, "config", None)  # an exported file has none
            tiling = getattr(config, "tiling", SIDE_BY_SIDE)
            views.append(View(images, _to_be_shown(visible), tiling))
    return Photograph(name, data, encoded.kind, tuple(views))


def drawn(view: View, weights: np.ndarray, query: tuple[int, int] | None = None) -> np.ndarray:
    """The photograph, dark where the map (h, w) has little weight, with a frame around the patch
    that looks: uint8 (h, w, 3), SHOWN pixels long."""
    height, width = view.pixels.shape[:2]
    laid = over_image(torch.from_numpy(weights)[None], view.tiling)[0].numpy()
    picture = darkened(view.pixels, laid, (0, 0, height, width))
    if query is not None:
        # The pixels of the patch in the picture
        image = view.tiling.image(weights.shape)
        slices = []
        for axis, side in enumerate((height, width)):
            start = query[axis] * view.tiling.stride[axis]  # pixels of the image
            end = start + view.tiling.size[axis]
            # Rounded up, as patch_at rounds down
            slices.append(slice(-(-start * side // image[axis]), -(-end * side // image[axis])))
        rows, columns = slices
        patch = picture[rows, columns]
        inside = patch[FRAME:-FRAME, FRAME:-FRAME].copy()
        patch[:] = AMBER
        patch[FRAME:-FRAME, FRAME:-FRAME] = inside
    return picture


def softened(weights: np.ndarray) -> np.ndarray:
    """A map of raw attention, to be drawn: no patch is brighter than 98 in a hundred are, as a few in
    the background often gather most of the weight; and the darkest still show where they are, so
    that they can be clicked on."""
    largest = np.quantile(weights, 0.98)
    return DARKEST * largest + (1 - DARKEST) * weights.clip(max=largest)


def _to_be_shown(pixels: np.ndarray) -> np.ndarray:
    """The picture with its longer side SHOWN pixels, so that patches of small ones can be clicked
    on: uint8 (h, w, 3)."""
    scale = SHOWN / max(pixels.shape[:2])
    height = max(round(pixels.shape[0] * scale), 1)
    width = max(round(pixels.shape[1] * scale), 1)
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def patch_at(
    x: int, y: int, shape: tuple[int, int], grid: Grid, tiling: Tiling = SIDE_BY_SIDE
) -> tuple[int, int]:
    """The patch, (row, column), at a pixel of a picture of `shape` (height, width): of those that
    overlap, the one whose middle is nearest."""
    image = tiling.image(grid)
    patch = []
    for axis, pixel in enumerate((y, x)):
        # floor((place - size / 2) / stride + 1 / 2), in whole numbers: place is pixel · image / side
        side = shape[axis]
        doubled = 2 * pixel * image[axis] + (tiling.stride[axis] - tiling.size[axis]) * side
        number = doubled // (2 * tiling.stride[axis] * side)
        patch.append(min(max(number, 0), grid[axis] - 1))
    return patch[0], patch[1]
