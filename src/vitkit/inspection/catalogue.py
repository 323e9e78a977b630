"""The table of figures, by name. Each is made of a model and images in one call: its arrays, its drawing, and
its section of a page. `vitkit inspect` and reports use it.

Legend: n images, B displayed images, L layers, (h, w) the grid of patches.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitkit.data import prepared_for_people
from vitkit.inspection.figures.alignment import alignment, draw_alignment
from vitkit.inspection.figures.attention_maps import raw_attention, rollout
from vitkit.inspection.figures.attention_statistics import (
    attention_distance,
    attention_entropy,
    draw_distance,
    draw_entropy,
)
from vitkit.inspection.figures.embedding import (
    draw_filters,
    draw_positions,
    filter_components,
    first_filters,
    position_similarity,
)
from vitkit.inspection.figures.occlusion import draw_occlusion, occlusion_curves
from vitkit.inspection.figures.passes import (
    check_has_attention,
    check_transformer,
    layer_names,
    small_batches,
)
from vitkit.inspection.figures.relevance import class_relevance, gradient_rollout
from vitkit.inspection.figures.token_states import (
    draw_colours,
    draw_norms,
    draw_similarity,
    patch_similarity,
    token_colours,
    token_norms,
)
from vitkit.inspection.pages.html import Markup, paragraph, section, themed_figure
from vitkit.inspection.photographs import clipped, draw_looked, over_image
from vitkit.inspection.plots import Theme
from vitkit.system.console.messages import log_bug, reason
from vitkit.system.console.progress import bar
from vitkit.system.errors import VitkitError
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILTERS = 28  # drawn filters, as in Fig. 7
HEADS = 8  # most heads that are drawn beside each other
BATCH = 8  # images between two updates of the progress bar
OF_A_MODEL = ("filters", "positions", "distance")  # the figures of Fig. 7


@dataclass(frozen=True, eq=False)
class InspectedModel:
    """A model, with the images and settings of its inspection."""

    classifier: Classifier
    images: Tensor | None = None
    """Prepared images, (n, C, H, W), over which measurements are averaged; None for no images."""
    names: tuple[str, ...] = ()
    """Names of the displayed images, which are the first ones."""
    target: int | None = None
    """The class whose relevance is shown; None is the most likely class of each image."""
    layer: int | None = None
    """Index of a layer of attention in `layer_names`; None is the last."""
    patch: tuple[int, int] | None = None
    """(row, column) of the patch whose attention is shown, or with which others are compared; None is what
    the head reads, or the patch in the middle."""
    other: Classifier | None = None
    """Another model, whose layers are compared with this one's."""
    other_images: Tensor | None = None
    """The images, prepared for `other`."""

    @property
    def prepared(self) -> Tensor:
        """The images; only for figures that need images."""
        assert self.images is not None, "the figure needs images"
        return self.images

    @property
    def shown(self) -> Tensor:
        """The displayed images as prepared images: (B, C, H, W)."""
        return self.prepared[: max(len(self.names), 1)]

    @property
    def pixels(self) -> np.ndarray:
        """The displayed images as pictures: uint8 (B, H, W, 3)."""
        return prepared_for_people(self.shown).permute(0, 2, 3, 1).cpu().numpy()

    def batches(self, text: str) -> Iterable[Tensor]:
        """All images in batches, with a progress bar."""
        parts = self.prepared.split(BATCH)
        return bar(text)(parts, len(parts))

    def in_parts(self, function: Callable[..., Tensor], *arguments) -> Tensor:
        """Apply a function of a classifier and images to the displayed images, in small batches."""
        parts = []
        for batch in small_batches(self.classifier, self.shown):
            parts.append(function(self.classifier, batch, *arguments))
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class Plate:
    """A computed figure."""

    arrays: Mapping[str, np.ndarray]
    """The data of the figure, by name."""
    draw: Callable[[Theme], "Figure"]
    """Draws the figure with a theme."""


def plate_of(result: object, draw: Callable[..., "Figure"]) -> Plate:
    """A figure with the fields of a result as numpy arrays. draw: function of the result and a theme."""
    arrays = {}
    for name, value in vars(result).items():
        if isinstance(value, Tensor):
            value = value.cpu().numpy()
        arrays[name] = np.asarray(value)
    return Plate(arrays, partial(draw, result))


# Figures of weights


def filters_plate(subject: InspectedModel) -> Plate:
    """Fig. 7 (left)."""
    filters = first_filters(subject.classifier.model)
    most = min(len(filters), filters[0].numel())
    components = filter_components(subject.classifier, min(FILTERS, most))
    return plate_of(components, draw_filters)


def positions_plate(subject: InspectedModel) -> Plate:
    """Fig. 7 (centre), Fig. 10."""
    similarity = position_similarity(subject.classifier)
    return plate_of(similarity, draw_positions)


# Figures of many images


def distance_plate(subject: InspectedModel) -> Plate:
    """Fig. 7 (right), Fig. 11, over all images."""
    batches = subject.batches("attention distance")
    distance = attention_distance(subject.classifier, batches)
    return plate_of(distance, draw_distance)


def entropy_plate(subject: InspectedModel) -> Plate:
    """The entropy of attention, over all images."""
    entropy = attention_entropy(subject.classifier, subject.batches("attention entropy"))
    return plate_of(entropy, draw_entropy)


def norms_plate(subject: InspectedModel) -> Plate:
    """The token norms of the displayed images."""
    norms = token_norms(subject.classifier, subject.shown)
    return plate_of(norms, draw_norms)


def alignment_plate(subject: InspectedModel) -> Plate:
    """The alignment of layers over all images, with another model if there is one."""
    found = alignment(subject.classifier, subject.prepared, subject.other, subject.other_images)
    return plate_of(found, draw_alignment)


# Figures of the displayed images


def rollout_plate(subject: InspectedModel) -> Plate:
    """Fig. 6, Fig. 14."""
    maps = subject.in_parts(rollout)
    return _darkened_plate(subject, {"rollout": maps})


def attention_plate(subject: InspectedModel) -> Plate:
    """The attention of one layer, head by head."""
    config = check_has_attention(subject.classifier).config
    layers = layer_names(config)
    layer = subject.layer
    if layer is None:
        layer = len(layers) - 1
    heads = [None, *range(min(config.heads, HEADS))]
    maps = {}
    for head in heads:
        title = "mean of the heads"
        if head is not None:
            title = f"head {head + 1}"
        maps[title] = subject.in_parts(raw_attention, layer, head, subject.patch)
    return _darkened_plate(subject, maps, is_clipped=True)


def relevance_plate(subject: InspectedModel) -> Plate:
    """The relevance for one class, computed in two ways."""
    maps = {
        "relevance": subject.in_parts(class_relevance, subject.target),
        "gradient rollout": subject.in_parts(gradient_rollout, subject.target),
    }
    return _darkened_plate(subject, maps, is_clipped=True)


def _darkened_plate(
    subject: InspectedModel, maps: dict[str, Tensor], is_clipped: bool = False
) -> Plate:
    """A figure of photographs darkened by maps."""
    drawn = {}
    for title, of_images in maps.items():
        if is_clipped:
            of_images = clipped(of_images)
        drawn[title] = over_image(of_images, check_transformer(subject.classifier).config.tiling)
    arrays = {title.replace(" ", "_"): of_images.numpy() for title, of_images in maps.items()}
    return Plate(arrays, partial(draw_looked, subject.pixels, drawn, names=subject.names))


def similarity_plate(subject: InspectedModel) -> Plate:
    """The similarity to the chosen patch, or to the middle one."""
    maps = patch_similarity(subject.classifier, subject.shown, subject.patch)
    patch = subject.patch or (maps.shape[1] // 2, maps.shape[2] // 2)
    arrays = {"similarity": maps.numpy(), "patch": np.asarray(patch)}
    return Plate(arrays, partial(draw_similarity, subject.pixels, maps, patch, names=subject.names))


def colours_plate(subject: InspectedModel) -> Plate:
    """Principal components of the patches of all displayed images, as colours."""
    colours = token_colours(subject.classifier, subject.shown)
    draw = partial(draw_colours, subject.pixels, colours, names=subject.names)
    return Plate({"colours": colours.numpy()}, draw)


def occlusion_plate(subject: InspectedModel) -> Plate:
    """The occlusion test of the rollout."""
    maps = subject.in_parts(rollout)
    cells = over_image(maps, check_transformer(subject.classifier).config.tiling)
    steps = min(14, maps[0].numel())
    found = occlusion_curves(subject.classifier, subject.shown, cells, subject.target, steps)
    plate = plate_of(found, partial(draw_occlusion, title="rollout"))
    return replace(plate, arrays={**plate.arrays, "rollout": maps.numpy()})


# The table


@dataclass(frozen=True)
class FigureKind:
    """A figure that can be made of models."""

    name: str
    title: str
    """Heading of the figure."""
    text: str
    """Explanation of the figure, in a sentence or two."""
    make: Callable[[InspectedModel], Plate]
    """Computes the figure. Raises VitkitError, with a sentence, for a model without such a figure."""
    needs_images: bool = True
    by_default: bool = True
    """Whether the figure is made if no figures are chosen."""
    of_photographs: bool = False
    """Whether most of the figure is photographs."""


FIGURES = (
    FigureKind(
        "filters", "Filters",
        "The principal components of the first layer's filters, the strongest first (Fig. 7, left): "
        "of a well-trained model they look like edges, waves and spots of colour.",
        filters_plate, needs_images=False,
    ),
    FigureKind(
        "positions", "Position embeddings",
        "The similarity of each patch's position embedding to those of all patches: one tile for each "
        "patch, at its place in the image (Fig. 7, centre; Fig. 10).",
        positions_plate, needs_images=False,
    ),
    FigureKind(
        "distance", "Attention distance",
        "The mean distance, in pixels, from a patch to the patches that it attends to (Fig. 7, right; "
        "Fig. 11): a dot for each head of a layer. Heads near the dashed line attend equally to all "
        "patches, those near zero to their neighbours.",
        distance_plate,
    ),
    FigureKind(
        "entropy", "Attention entropy",
        "The spread of a head's attention over tokens: at the dashed line it attends equally to all, at "
        "zero to a single one.",
        entropy_plate,
    ),
    FigureKind(
        "rollout", "Attention rollout",
        "The parts of the photograph that reach the output through the attention of all layers (Fig. 6 and "
        "14); dark parts reach it least. Attention does not explain why a model gives an answer.",
        rollout_plate, of_photographs=True,
    ),
    FigureKind(
        "relevance", "Relevance for a class",
        "The parts of the photograph that support the class below it: attention weighted by the gradient "
        "of that class's output (Chefer et al. 2021), multiplied through the layers as in a rollout.",
        relevance_plate, of_photographs=True,
    ),
    FigureKind(
        "norms", "Token norms",
        "The norms of the tokens' states, by depth. A few tokens with a norm many times that of others store "
        "global information of the image (Darcet et al. 2024); they are artefacts in maps of attention.",
        norms_plate,
    ),
    FigureKind(
        "colours", "Principal components of patches",
        "Patches with similar states have similar colours, also in different photographs.",
        colours_plate, of_photographs=True,
    ),
    FigureKind(
        "attention", "Attention of a layer",
        "The attention of one layer, for each of its heads, without the effect of other layers.",
        attention_plate, by_default=False, of_photographs=True,
    ),
    FigureKind(
        "similarity", "Similarity to a patch",
        "The similarity of all patches in the photograph to the patch in the ring, for the model.",
        similarity_plate, by_default=False, of_photographs=True,
    ),
    FigureKind(
        "alignment", "Alignment of layers",
        "The similarity of layers' representations of the images (CKA): 1 means equal up to a rotation "
        "and a scale, 0 unrelated.",
        alignment_plate, by_default=False,
    ),
    FigureKind(
        "occlusion", "Faithfulness of the rollout",
        "The output as patches are covered, or shown, in the order of the rollout and in a random order: "
        "for a faithful map, the first curve falls sooner than the random one, and the second rises "
        "sooner.",
        occlusion_plate, by_default=False,
    ),
)  # fmt: skip


# Sections of a page


def model_sections(classifier: Classifier, images: Tensor | None = None) -> list[Markup]:
    """A section for each of the three pictures of Fig. 7; for a model without such a picture, a sentence
    instead.

    images: prepared images, uint8 (B, 3, H, W), over which the attention distance is averaged; None
        leaves it out, and then the model computes nothing.
    """
    subject = InspectedModel(classifier, images)
    blocks = []
    for kind in FIGURES:
        has_its_images = images is not None or not kind.needs_images
        if kind.name in OF_A_MODEL and has_its_images:
            try:
                block = figure_section(kind, kind.make(subject))
            except VitkitError as error:
                block = missing_section(kind, str(error))
            except Exception as error:  # a bug in one figure must not cost the others
                log_bug(f"the figure {kind.name} failed (bug)")
                block = missing_section(kind, f"it failed (bug): {reason(error)}")
            blocks.append(block)
    return blocks


def figure_section(kind: FigureKind, plate: Plate) -> Markup:
    """A figure under its title, with its explanation."""
    figure = themed_figure(plate.draw, kind.title, kind.of_photographs)
    return section(kind.title, paragraph(kind.text), figure)


def missing_section(kind: FigureKind, why: str) -> Markup:
    """A sentence in place of a figure."""
    return section(kind.title, paragraph(f"Left out: {why}."))
