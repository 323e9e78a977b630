"""A model's attention for one image, as a map of the patches and as a picture.

Legend: (h, w) the grid of patches, H W pixels of the model's input.
"""

import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from vitkit.apps.serve.batching import Choice, Sent
from vitkit.data import Picture, Preprocessing, in_memory, open_image, picture_for_people
from vitkit.inspection import (
    anomaly_map,
    check_has_attention,
    darkened,
    has_anomaly_map,
    heated,
    layer_names,
    over_image,
    raw_attention,
    rollout,
    whole_pixels,
)
from vitkit.models import Grid, Tiling, same_memory
from vitkit.runtimes import FileRuntime
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, BadWeights
from vitkit.weights import Classifier

SHOWN = 640  # longer side of a picture, pixels
AMBER = np.array([255, 196, 0], np.uint8)  # contrasts with dark and with bright patches
FRAME = 3  # width of the frame around a patch, pixels
POOLING = "pooling"  # name of a MAP head's layer in `layer_names`
DARKEST = 0.2  # brightness of a patch without attention in a single layer


class Looked(NamedTuple):
    """The attention of a model for an image."""

    weights: np.ndarray
    """Attention of the patches, float32 (h, w), not negative; or their anomaly map, from 0 to 1."""
    rows: tuple[float, ...]
    """Centre of each row of patches, as a share of the picture's height: h numbers."""
    columns: tuple[float, ...]
    """Centre of each column of patches, as a share of the picture's width: w numbers."""
    picture: np.ndarray
    """The part of the image that the model receives, darkened by low attention, or red where it is unlike
    good images: uint8 (h', w', 3), longer side SHOWN pixels."""
    caption: str
    """Description of the picture, in a sentence."""


@dataclass(frozen=True, eq=False)
class AttentionView:
    """An image as model input, and for display."""

    images: torch.Tensor
    """Model input: uint8 (1, 3, H, W)."""
    pixels: np.ndarray
    """The displayed part of the image: uint8 (h', w', 3), longer side SHOWN pixels."""


class Looker:
    """Computes the attention of a model, one image at a time. Other threads may use the classifier
    meanwhile: its weights are shared, but the hooks that record attention are not."""

    def __init__(self, classifier: Classifier):
        """Raises VitkitError for a model without attention among patches, and for one with an output per
        token."""
        theirs = check_has_attention(classifier)
        config = theirs.config
        self.model = copy.deepcopy(theirs, memo=same_memory(theirs))
        self.classifier = replace(classifier, model=self.model)
        self.layers = layer_names(config)
        self.heads: int = config.heads
        self.tiling: Tiling = config.tiling
        self.reader = config.pooling.words

    def look(self, image: Sent, choice: Choice) -> Looked:
        """The requested attention for an image.

        Raises BadImage for an image that cannot be decoded, BadSettings for a layer, head or patch that
        the model does not have, and BadWeights if the attention is not finite.
        """
        self._check_layer(choice)
        view = self.view(image)
        self._check_patch(choice, self.model.grid(view.images))
        if self.says_unlike(choice):
            return self._unlike(view)
        if choice.layer is None:
            (weights,) = rollout(self.classifier, view.images).numpy()
            drawn_weights = weights
        else:
            query = choice.patch and (choice.patch[0] - 1, choice.patch[1] - 1)
            head = choice.head and choice.head - 1
            (weights,) = raw_attention(
                self.classifier, view.images, choice.layer - 1, head, query
            ).numpy()
            drawn_weights = softened(weights)
        if not np.isfinite(weights).all():
            raise BadWeights("the model's attention is not finite; its weights may be damaged")
        rows, columns = middles(self.tiling, weights.shape)
        picture = drawn(view.pixels, drawn_weights, self.tiling, choice.patch)
        return Looked(weights, rows, columns, picture, self._caption(choice))

    def says_unlike(self, choice: Choice) -> bool:
        """Whether the map that is asked for says where an image is unlike good ones, and not where a layer looks."""
        return choice.layer is None and has_anomaly_map(self.classifier)

    def _unlike(self, view: AttentionView) -> Looked:
        """Where an image is unlike the good ones that the model remembers."""
        (shares,) = anomaly_map(self.classifier, view.images).numpy()
        return unlike(view.pixels, shares, self.tiling, self.classifier.labels[0])

    def view(self, image: Sent) -> AttentionView:
        """Decode an image. Raises BadImage."""
        picture = in_memory(open_image(image.data, image.name))  # decoded once
        pixels = displayed(picture, self.classifier.preprocessing)
        return AttentionView(self.classifier.batch([picture]), pixels)

    def _check_layer(self, choice: Choice) -> None:
        """Raises BadSettings for a layer or head that does not exist, and for a head or patch
        without a layer."""
        if choice.layer is None:
            if choice.head is not None or choice.patch is not None:
                raise BadSettings(
                    "a head or a patch is chosen without a layer; give the layer too, or neither for the "
                    "attention through all layers"
                )
            return
        for name, number, count in (
            ("layer", choice.layer, len(self.layers)),
            ("head", choice.head or 1, self.heads),
        ):
            if not 1 <= number <= count:
                raise BadSettings(f"{name} is {number}; the model has {name}s 1 to {count}")

    def _check_patch(self, choice: Choice, grid: Grid) -> None:
        """Raises BadSettings for a patch outside of the grid, and for the pooling layer, where
        patches do not attend."""
        if choice.layer is None or choice.patch is None:
            return
        if self.layers[choice.layer - 1] == POOLING:
            raise BadSettings(
                f"layer {choice.layer} is the pooling, in which a learned query attends and no patch; "
                "choose another layer, or no patch"
            )
        for name, number, count in zip(("row", "column"), choice.patch, grid, strict=True):
            if not 1 <= number <= count:
                raise BadSettings(
                    f"{name} is {number}; the image has {name}s 1 to {count} of patches"
                )

    def _caption(self, choice: Choice) -> str:
        if choice.layer is None:
            return (
                f"Attention rollout: what reaches {self.reader} through "
                f"{counted(len(self.layers), 'layer')}."
            )
        heads = f"mean of {counted(self.heads, 'head')}"
        if choice.head is not None:
            heads = f"head {choice.head} of {self.heads}"
        reader = self.reader
        if choice.patch is not None:
            reader = f"the framed patch (row {choice.patch[0]}, column {choice.patch[1]})"
        name = self.layers[choice.layer - 1].capitalize()
        return f"{name}, {heads}: where {reader} looks."


class FileLooker:
    """The anomaly map of an exported file of a model of good images, with the attributes of `Looker`. It computes one
    image at a time, and has no layers."""

    layers = ()
    heads = 0

    def __init__(self, file: FileRuntime):
        self.file = file

    def look(self, image: Sent, choice: Choice) -> Looked:
        """Where an image is unlike good ones.

        Raises BadImage for an image that cannot be decoded, BadSettings for a layer, head or patch, which a file
        does not show, and BadWeights if the map is not finite.
        """
        if choice != Choice():
            raise BadSettings(
                "an exported file says where an image is unlike good ones, and shows no layer, head or patch; serve "
                "the model that it was exported from"
            )
        picture = in_memory(open_image(image.data, image.name))  # decoded once
        preprocessing = self.file.preprocessing
        prepared = preprocessing.array(picture)[None]
        _, (shares,) = self.file.logits_and_anomaly_map(prepared)
        pixels = displayed(picture, preprocessing)
        tiling = Tiling(
            (1, 1), (1, 1)
        )  # patches side by side: where they are follows from their numbers
        return unlike(pixels, shares, tiling, self.file.labels[0])

    def says_unlike(self, choice: Choice) -> bool:
        """True: it has no other map."""
        return True


def unlike(pixels: np.ndarray, shares: np.ndarray, tiling: Tiling, good: str) -> Looked:
    """The anomaly map of an image, (h, w), as the answer of a model of good images.

    pixels: as in AttentionView. good: the class of the good images. Raises BadWeights if the map is not finite.
    """
    if not np.isfinite(shares).all():
        raise BadWeights("the anomaly map is not finite; the model's weights may be damaged")
    rows, columns = middles(tiling, shares.shape)
    caption = f"Red where it is unlike the images of {good}."
    return Looked(shares, rows, columns, heated(pixels, shares), caption)


# The picture


def displayed(picture: Picture, preprocessing: Preprocessing) -> np.ndarray:
    """The part of a picture that a model receives, for people: uint8 (h', w', 3), longer side SHOWN pixels. Raises
    BadImage."""
    rows, columns = whole_pixels(preprocessing.visible(picture), picture.size)
    return _scaled_for_display(picture_for_people(picture)[rows, columns])


def drawn(
    pixels: np.ndarray, weights: np.ndarray, tiling: Tiling, patch: tuple[int, int] | None = None
) -> np.ndarray:
    """A photograph, uint8 (h', w', 3), darkened where the map (h, w) is low, with a frame around
    the patch (row, column), counted from 1: uint8 (h', w', 3)."""
    height, width = pixels.shape[:2]
    over = over_image(torch.from_numpy(weights)[None], tiling)[0].numpy()
    picture = darkened(pixels, over, (0, 0, height, width))
    if patch is None:
        return picture
    # The pixels of the patch
    image = tiling.image(weights.shape)
    slices = []
    for axis, side in enumerate((height, width)):
        start = (patch[axis] - 1) * tiling.stride[axis]  # in pixels of the model's input
        end = start + tiling.size[axis]
        slices.append(slice(-(-start * side // image[axis]), -(-end * side // image[axis])))
    rows, columns = slices
    framed = picture[rows, columns]
    inside = framed[FRAME:-FRAME, FRAME:-FRAME].copy()
    framed[:] = AMBER
    framed[FRAME:-FRAME, FRAME:-FRAME] = inside
    return picture


def middles(tiling: Tiling, grid: tuple[int, int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The centres of the rows and columns of a grid of patches, (h, w), as shares of the image's
    height and width. Patches may overlap."""
    image = tiling.image(grid)
    shares = []
    for axis, count in enumerate(grid):
        first = tiling.size[axis] / 2
        shares.append(
            tuple((first + number * tiling.stride[axis]) / image[axis] for number in range(count))
        )
    return shares[0], shares[1]


def softened(weights: np.ndarray) -> np.ndarray:
    """A map of raw attention, (h, w), for drawing: weights are clipped at the 98th percentile,
    because a few background patches often have most of the weight, and every patch gets some
    brightness, so that it can be clicked on."""
    largest = np.quantile(weights, 0.98)
    return DARKEST * largest + (1 - DARKEST) * weights.clip(max=largest)


def _scaled_for_display(pixels: np.ndarray) -> np.ndarray:
    """A picture enlarged or reduced to SHOWN pixels on its longer side, so that its patches can be
    clicked on: uint8 (h', w', 3)."""
    scale = SHOWN / max(pixels.shape[:2])
    height = max(round(pixels.shape[0] * scale), 1)
    width = max(round(pixels.shape[1] * scale), 1)
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
