"""Every figure of inspection by its name: `vitkit inspect` and pages take them from here."""

from collections.abc import Callable
from dataclasses import dataclass

from vitkit.inspection import plates
from vitkit.inspection.plates import Plate, Subject


@dataclass(frozen=True)
class FigureKind:
    """A figure that can be made of models."""

    name: str
    title: str
    """A heading for it."""
    text: str
    """What it shows, in a sentence or two for people."""
    make: Callable[[Subject], Plate]
    """Computes it. Raises ValueError, with a sentence, for a model that it has no meaning for."""
    needs_images: bool = True
    by_default: bool = True
    """Whether it is made if nobody says which."""
    of_photographs: bool = False
    """Whether most of it is photographs."""


FIGURES = (
    FigureKind(
        "filters", "Filters",
        "The principal components of the first layer's filters, the strongest first (Fig. 7, left): "
        "of a well-trained model they look like edges, waves and spots of colour.",
        plates.filters_plate, needs_images=False,
    ),
    FigureKind(
        "positions", "Position embeddings",
        "How much alike the model's position of a patch and those of all others are, a tile for each "
        "patch where it lies in the image (Fig. 7, centre; Fig. 10).",
        plates.positions_plate, needs_images=False,
    ),
    FigureKind(
        "distance", "Attention distance",
        "How far from a patch, in pixels, what it attends to is (Fig. 7, right; Fig. 11): a dot for "
        "each head of a layer. Heads near the dashed line look everywhere alike, those near zero at "
        "their own surroundings.",
        plates.distance_plate,
    ),
    FigureKind(
        "entropy", "Attention entropy",
        "How many tokens a head spreads its attention over: at the dashed line all alike, at zero "
        "one alone.",
        plates.entropy_plate,
    ),
    FigureKind(
        "rollout", "Attention rollout",
        "What of the photograph reaches the answer, through all layers (Fig. 6 and 14). Dark is what "
        "was looked at least. Where a model looks is not why it answers.",
        plates.rollout_plate, of_photographs=True,
    ),
    FigureKind(
        "relevance", "Relevance for a class",
        "What of the photograph speaks for the class below it: attention weighted by the gradient of "
        "that class's output (Chefer et al. 2021), and the same as a rollout.",
        plates.relevance_plate, of_photographs=True,
    ),
    FigureKind(
        "norms", "Token norms",
        "How long the tokens' states are, by depth. A few that are many times longer than the others "
        "are places where the model keeps what belongs to no place (Darcet et al. 2024); maps of "
        "attention show them as artefacts.",
        plates.norms_plate,
    ),
    FigureKind(
        "colours", "Principal components of patches",
        "Patches that are alike to the model have like colours, also in different photographs.",
        plates.colours_plate, of_photographs=True,
    ),
    FigureKind(
        "attention", "Attention of a layer",
        "The attention of one layer, head by head, without what other layers make of it.",
        plates.attention_plate, by_default=False, of_photographs=True,
    ),
    FigureKind(
        "similarity", "Similarity to a patch",
        "What else in the photograph is to the model as the patch in the ring is.",
        plates.similarity_plate, by_default=False, of_photographs=True,
    ),
    FigureKind(
        "alignment", "Alignment of layers",
        "How much alike layers see the images, whatever numbers they write it in (CKA): 1 is the "
        "same but for a rotation, 0 nothing in common.",
        plates.alignment_plate, by_default=False,
    ),
    FigureKind(
        "occlusion", "Is the rollout worth believing?",
        "The answer as patches are covered, or shown, in the order of the rollout and at random: of a "
        "map that says what the model needs, the first curve falls sooner, and the second rises "
        "sooner.",
        plates.occlusion_plate, by_default=False,
    ),
)  # fmt: skip
