"""Figures of a model as blocks of a page: what is shown, in a sentence or two, and the figure; or why
there is none."""

from torch import Tensor

from vitkit.inspection.atlas import FIGURES, FigureKind
from vitkit.inspection.pages.html import Block, paragraph, section, themed_figure
from vitkit.inspection.plates import Plate, Subject
from vitkit.weights import Classifier

OF_A_MODEL = ("filters", "positions", "distance")  # Fig. 7


def model_sections(classifier: Classifier, images: Tensor | None = None) -> list[Block]:
    """A section for each of Fig. 7's three pictures; a sentence in place of one that has no meaning
    for this model.

    images: prepared ones, uint8 (B, 3, H, W), over which the attention distance is averaged; None
    leaves it out, and then nothing is computed with the model.
    """
    subject = Subject(classifier, images)
    blocks = []
    for kind in FIGURES:
        has_its_images = images is not None or not kind.needs_images
        if kind.name in OF_A_MODEL and has_its_images:
            try:
                block = figure_section(kind, kind.make(subject))
            except ValueError as error:
                block = missing_section(kind, str(error))
            blocks.append(block)
    return blocks


def figure_section(kind: FigureKind, plate: Plate) -> Block:
    """A figure under its title, with what it shows."""
    figure = themed_figure(plate.draw, kind.title, kind.of_photographs)
    return section(kind.title, paragraph(kind.text), figure)


def missing_section(kind: FigureKind, why: str) -> Block:
    """The sentence in place of a figure."""
    return section(kind.title, paragraph(f"Left out: {why}."))
