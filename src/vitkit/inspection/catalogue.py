"""Every figure of this package by its name, made of a model and images in one call: its arrays, how they
are drawn, and the figure as a section of a page. `vitkit inspect` and reports take them from here.

Legend: n images, B of them that are shown, L layers, (h, w) the grid of patches.
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

FILTERS = 28  # of Fig. 7
HEADS = 8  # drawn beside each other
BATCH = 8  # images between two movements of the bar
OF_A_MODEL = ("filters", "positions", "distance")  # Fig. 7


@dataclass(frozen=True, eq=False)
class InspectedModel:
    """A model, with the images and settings of its inspection."""

    classifier: Classifier
    images: Tensor | None = None
    """Prepared images, (n, C, H, W), over which measurements of the model are averaged; None for
    no images."""
    names: tuple[str, ...] = ()
    """A name for each of the first images, those that are shown."""
    target: int | None = None
    """The class whose relevance is shown; None is the most likely class of each image."""
    layer: int | None = None
    """Which layer of attention, of `layer_names`, from 0; None is the last."""
    patch: tuple[int, int] | None = None
    """The patch, (row, column), that looks, or that others are compared with; None is what the head
    reads, and the middle."""
    other: Classifier | None = None
    """Another model, with whose layers this one's are compared."""
    other_images: Tensor | None = None
    """`images` as prepared for the model `other`."""

    @property
    def prepared(self) -> Tensor:
        """`images`, for a figure that is of images."""
        assert self.images is not None, "it is asked for only if there are images"
        return self.images

    @property
    def shown(self) -> Tensor:
        """The images that are shown: (B, C, H, W), as they are prepared."""
        return self.prepared[: max(len(self.names), 1)]

    @property
    def pixels(self) -> np.ndarray:
        """The shown images as pictures: uint8 (B, H, W, 3)."""
        return prepared_for_people(self.shown).permute(0, 2, 3, 1).cpu().numpy()

    def batches(self, text: str) -> Iterable[Tensor]:
        """All images in batches, with a bar."""
        parts = self.prepared.split(BATCH)
        return bar(text)(parts, len(parts))

    def in_parts(self, function: Callable[..., Tensor], *arguments) -> Tensor:
        """A function of a classifier and images, called for the images that are shown, a few at a
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


def plate_of(result: object, draw: Callable[..., "Figure"]) -> Plate:
    """The fields of a result of this package as arrays of numpy's; `draw` takes it and a theme."""
    arrays = {}
    for name, value in vars(result).items():
        if isinstance(value, Tensor):
            value = value.cpu().numpy()
        arrays[name] = np.asarray(value)
    return Plate(arrays, partial(draw, result))


# Of the weights alone


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


# Of many images


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
    """The token norms of the images that are shown."""
    norms = token_norms(subject.classifier, subject.shown)
    return plate_of(norms, draw_norms)


def alignment_plate(subject: InspectedModel) -> Plate:
    """The alignment of layers over all images, with another model if there is one."""
    found = alignment(subject.classifier, subject.prepared, subject.other, subject.other_images)
    return plate_of(found, draw_alignment)


# Of the photographs that are shown


def rollout_plate(subject: InspectedModel) -> Plate:
    """Fig. 6, Fig. 14."""
    maps = subject.in_parts(rollout)
    return _looked(subject, {"rollout": maps})


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
    return _looked(subject, maps, is_clipped=True)


def relevance_plate(subject: InspectedModel) -> Plate:
    """The relevance for one class, computed in two ways."""
    maps = {
        "relevance": subject.in_parts(class_relevance, subject.target),
        "gradient rollout": subject.in_parts(gradient_rollout, subject.target),
    }
    return _looked(subject, maps, is_clipped=True)


def _looked(subject: InspectedModel, maps: dict[str, Tensor], is_clipped: bool = False) -> Plate:
    """Photographs darkened by maps."""
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
    """The colours of the patches of all images that are shown."""
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
    """A heading for it."""
    text: str
    """What it shows, in a sentence or two for people."""
    make: Callable[[InspectedModel], Plate]
    """Computes it. Raises VitkitError, with a sentence, for a model that it has no meaning for."""
    needs_images: bool = True
    by_default: bool = True
    """Whether it is made when no figures are chosen."""
    of_photographs: bool = False
    """Whether most of it is photographs."""


FIGURES = (
    FigureKind(
        "filters", "Filters",
        "The principal components of the first layer's filters, the strongest first (Fig. 7, left): "
        "of a well-trained model they look like edges, waves and spots of colour.",
        filters_plate, needs_images=False,
    ),
    FigureKind(
        "positions", "Position embeddings",
        "How much alike the model's position of a patch and those of all others are, a tile for each "
        "patch where it lies in the image (Fig. 7, centre; Fig. 10).",
        positions_plate, needs_images=False,
    ),
    FigureKind(
        "distance", "Attention distance",
        "How far from a patch, in pixels, what it attends to is (Fig. 7, right; Fig. 11): a dot for "
        "each head of a layer. Heads near the dashed line look everywhere alike, those near zero at "
        "their own surroundings.",
        distance_plate,
    ),
    FigureKind(
        "entropy", "Attention entropy",
        "How many tokens a head spreads its attention over: at the dashed line all alike, at zero "
        "one alone.",
        entropy_plate,
    ),
    FigureKind(
        "rollout", "Attention rollout",
        "What of the photograph reaches the answer, through all layers (Fig. 6 and 14). Dark is what "
        "was looked at least. Where a model looks is not why it answers.",
        rollout_plate, of_photographs=True,
    ),
    FigureKind(
        "relevance", "Relevance for a class",
        "What of the photograph speaks for the class below it: attention weighted by the gradient of "
        "that class's output (Chefer et al. 2021), and the same as a rollout.",
        relevance_plate, of_photographs=True,
    ),
    FigureKind(
        "norms", "Token norms",
        "How long the tokens' states are, by depth. A few that are many times longer than the others "
        "are places where the model keeps what belongs to no place (Darcet et al. 2024); maps of "
        "attention show them as artefacts.",
        norms_plate,
    ),
    FigureKind(
        "colours", "Principal components of patches",
        "Patches that are alike to the model have like colours, also in different photographs.",
        colours_plate, of_photographs=True,
    ),
    FigureKind(
        "attention", "Attention of a layer",
        "The attention of one layer, head by head, without what other layers make of it.",
        attention_plate, by_default=False, of_photographs=True,
    ),
    FigureKind(
        "similarity", "Similarity to a patch",
        "What else in the photograph is to the model as the patch in the ring is.",
        similarity_plate, by_default=False, of_photographs=True,
    ),
    FigureKind(
        "alignment", "Alignment of layers",
        "How much alike layers see the images, whatever numbers they write it in (CKA): 1 is the "
        "same but for a rotation, 0 nothing in common.",
        alignment_plate, by_default=False,
    ),
    FigureKind(
        "occlusion", "Is the rollout worth believing?",
        "The answer as patches are covered, or shown, in the order of the rollout and at random: of a "
        "map that says what the model needs, the first curve falls sooner, and the second rises "
        "sooner.",
        occlusion_plate, by_default=False,
    ),
)  # fmt: skip


# Sections of a page


def model_sections(classifier: Classifier, images: Tensor | None = None) -> list[Markup]:
    """A section for each of Fig. 7's three pictures; a sentence in place of one that has no meaning
    for this model.

    images: prepared ones, uint8 (B, 3, H, W), over which the attention distance is averaged; None
    leaves it out, and then nothing is computed with the model.
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
            except Exception as error:  # a bug in one figure: the page has the others
                log_bug(f"the figure {kind.name} failed (bug)")
                block = missing_section(kind, f"it failed (bug): {reason(error)}")
            blocks.append(block)
    return blocks


def figure_section(kind: FigureKind, plate: Plate) -> Markup:
    """A figure under its title, with what it shows."""
    figure = themed_figure(plate.draw, kind.title, kind.of_photographs)
    return section(kind.title, paragraph(kind.text), figure)


def missing_section(kind: FigureKind, why: str) -> Markup:
    """The sentence in place of a figure."""
    return section(kind.title, paragraph(f"Left out: {why}."))
