"""The figures of this room, each made of a model and images in one call: its arrays, and how they are
drawn. atlas.py has them by their names.

Legend: n images, B of them that are shown, L layers, (h, w) the grid of patches.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitkit.data import prepared_for_people
from vitkit.inspection.figures.attention import raw_attention
from vitkit.inspection.figures.batches import small_batches
from vitkit.inspection.figures.cka import alignment
from vitkit.inspection.figures.distance import attention_distance
from vitkit.inspection.figures.entropy import attention_entropy
from vitkit.inspection.figures.filters import filter_components, first_filters
from vitkit.inspection.figures.gradients import class_relevance, gradient_rollout
from vitkit.inspection.figures.layers import check_has_attention, layer_names
from vitkit.inspection.figures.occlusion import occlusion_curves
from vitkit.inspection.figures.positions import position_similarity
from vitkit.inspection.figures.rollout import rollout
from vitkit.inspection.figures.states import patch_similarity, token_colours, token_norms
from vitkit.inspection.plots import models as drawings
from vitkit.inspection.plots import photographs
from vitkit.inspection.plots.overlays import over_image
from vitkit.inspection.plots.themes import Theme
from vitkit.system.console.progress import bar
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILTERS = 28  # of Fig. 7
HEADS = 8  # drawn beside each other
BATCH = 8  # images between two movements of the bar


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and what it is looked at with."""

    classifier: Classifier
    images: Tensor | None = None
    """Prepared images, (n, C, H, W), over which what is said of the model is averaged; None for
    none."""
    names: tuple[str, ...] = ()
    """A name for each of the first images, those that are shown."""
    target: int | None = None
    """The class whose relevance is shown; None is each image's likeliest."""
    layer: int | None = None
    """Which layer of attention, of `layer_names`, from 0; None is the last."""
    patch: tuple[int, int] | None = None
    """The patch, (row, column), that looks, or that others are compared with; None is what the head
    reads, and the middle."""
    other: Classifier | None = None
    """Another model, with whose layers this one's are compared."""
    other_images: Tensor | None = None
    """The same images, prepared for it."""

    @property
    def shown(self) -> Tensor:
        """The images that are shown: (B, C, H, W), as they are prepared."""
        return self.images[: max(len(self.names), 1)]

    @property
    def pixels(self) -> np.ndarray:
        """The same as pictures: uint8 (B, H, W, 3)."""
        return prepared_for_people(self.shown).permute(0, 2, 3, 1).cpu().numpy()

    def batches(self, text: str) -> Iterator[Tensor]:
        """All images in batches, with a bar."""
        parts = self.images.split(BATCH)
        return bar(text)(parts, len(parts))

    def in_parts(self, function: Callable[..., Tensor], *arguments) -> Tensor:
        """What a function of a classifier and images gives for the images that are shown, a few at a
        time."""
        parts = []
        for batch in small_batches(self.classifier, self.shown):
            parts.append(function(self.classifier, batch, *arguments))
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class Plate:
    """A figure that was computed."""

    arrays: Mapping[str, np.ndarray]
    """What it shows, by name."""
    draw: Callable[[Theme], "Figure"]
    """Draws it."""


def arrays_of(result: object) -> dict[str, np.ndarray]:
    """The fields of a result of this room, as arrays of numpy's."""
    arrays = {}
    for name, value in vars(result).items():
        if isinstance(value, Tensor):
            value = value.cpu().numpy()
        arrays[name] = np.asarray(value)
    return arrays


# Of the weights alone


def filters_plate(subject: Subject) -> Plate:
    """Fig. 7 (left)."""
    filters = first_filters(subject.classifier.model)
    most = min(len(filters), filters[0].numel())
    components = filter_components(subject.classifier, min(FILTERS, most))
    return Plate(arrays_of(components), lambda theme: drawings.draw_filters(components, theme))


def positions_plate(subject: Subject) -> Plate:
    """Fig. 7 (centre), Fig. 10."""
    similarity = position_similarity(subject.classifier)
    return Plate(arrays_of(similarity), lambda theme: drawings.draw_positions(similarity, theme))


# Of many images


def distance_plate(subject: Subject) -> Plate:
    """Fig. 7 (right), Fig. 11, over all images."""
    batches = subject.batches("attention distance")
    distance = attention_distance(subject.classifier, batches)
    return Plate(arrays_of(distance), lambda theme: drawings.draw_distance(distance, theme))


def entropy_plate(subject: Subject) -> Plate:
    """Over all images."""
    entropy = attention_entropy(subject.classifier, subject.batches("attention entropy"))
    return Plate(arrays_of(entropy), lambda theme: drawings.draw_entropy(entropy, theme))


def norms_plate(subject: Subject) -> Plate:
    """Of the images that are shown."""
    norms = token_norms(subject.classifier, subject.shown)
    return Plate(arrays_of(norms), lambda theme: drawings.draw_norms(norms, theme))


def alignment_plate(subject: Subject) -> Plate:
    """Over all images, with another model if there is one."""
    found = alignment(subject.classifier, subject.images, subject.other, subject.other_images)
    return Plate(arrays_of(found), lambda theme: drawings.draw_alignment(found, theme))


# Of the photographs that are shown


def rollout_plate(subject: Subject) -> Plate:
    """Fig. 6, Fig. 14."""
    maps = subject.in_parts(rollout)
    return _looked(subject, {"rollout": maps})


def attention_plate(subject: Subject) -> Plate:
    """One layer, head by head."""
    layers = layer_names(check_has_attention(subject.classifier))
    layer = subject.layer
    if layer is None:
        layer = len(layers) - 1
    heads = [None, *range(min(subject.classifier.model.config.heads, HEADS))]
    maps = {}
    for head in heads:
        title = "mean of the heads"
        if head is not None:
            title = f"head {head + 1}"
        maps[title] = subject.in_parts(raw_attention, layer, head, subject.patch)
    return _looked(subject, maps, is_clipped=True)


def relevance_plate(subject: Subject) -> Plate:
    """For one class, in two ways."""
    maps = {
        "relevance": subject.in_parts(class_relevance, subject.target),
        "gradient rollout": subject.in_parts(gradient_rollout, subject.target),
    }
    return _looked(subject, maps, is_clipped=True)


def _looked(subject: Subject, maps: dict[str, Tensor], is_clipped: bool = False) -> Plate:
    """Photographs darkened by maps."""
    drawn = maps
    if is_clipped:
        drawn = {title: photographs.clipped(of_images) for title, of_images in maps.items()}
    tiling = subject.classifier.model.config.tiling
    drawn = {title: over_image(of_images, tiling) for title, of_images in drawn.items()}
    pixels = subject.pixels

    def draw(theme: Theme) -> "Figure":
        return photographs.draw_looked(pixels, drawn, theme, subject.names)

    arrays = {title.replace(" ", "_"): of_images.numpy() for title, of_images in maps.items()}
    return Plate(arrays, draw)


def similarity_plate(subject: Subject) -> Plate:
    """To the chosen patch, or that in the middle."""
    maps = patch_similarity(subject.classifier, subject.shown, subject.patch)
    patch = subject.patch or (maps.shape[1] // 2, maps.shape[2] // 2)
    pixels = subject.pixels

    def draw(theme: Theme) -> "Figure":
        return photographs.draw_similarity(pixels, maps, patch, theme, subject.names)

    return Plate({"similarity": maps.numpy(), "patch": np.asarray(patch)}, draw)


def colours_plate(subject: Subject) -> Plate:
    """Of the images that are shown, together."""
    colours = token_colours(subject.classifier, subject.shown)
    pixels = subject.pixels

    def draw(theme: Theme) -> "Figure":
        return photographs.draw_colours(pixels, colours, theme, subject.names)

    return Plate({"colours": colours.numpy()}, draw)


def occlusion_plate(subject: Subject) -> Plate:
    """Of the rollout."""
    maps = subject.in_parts(rollout)
    cells = over_image(maps, subject.classifier.model.config.tiling)
    steps = min(14, maps[0].numel())
    found = occlusion_curves(subject.classifier, subject.shown, cells, subject.target, steps)

    def draw(theme: Theme) -> "Figure":
        return photographs.draw_occlusion(found, "rollout", theme)

    return Plate(arrays_of(found) | {"rollout": maps.numpy()}, draw)
