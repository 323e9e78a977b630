"""What the paper's figures say of one model, as blocks of a page: its filters, its positions and how
far its heads look."""

from vitkit.inspection.batches import Images
from vitkit.inspection.distance import attention_distance
from vitkit.inspection.drawings import draw_distance, draw_filters, draw_positions
from vitkit.inspection.filters import filter_components, first_filters
from vitkit.inspection.page import Block, paragraph, section, themed_figure
from vitkit.inspection.positions import position_similarity
from vitkit.weights import Classifier

MOST_COMPONENTS = 28  # Fig. 7


def model_sections(classifier: Classifier, images: Images | None = None) -> list[Block]:
    """A section for each of Fig. 7's three pictures; a sentence in place of one that has no meaning
    for this model.

    images: prepared ones, uint8 (B, 3, H, W), or batches of them, over which the attention distance
    is averaged; None leaves it out, and then nothing is computed with the model.
    """
    parts = {"Filters": _filters, "Position embeddings": _positions}
    if images is not None:
        parts["Attention distance"] = lambda model: _distance(model, images)
    blocks = []
    for title, make in parts.items():
        try:
            content = make(classifier)
        except ValueError as error:
            content = [paragraph(f"Left out: {error}.")]
        blocks.append(section(title, *content))
    return blocks


def _filters(classifier: Classifier) -> list[Block]:
    """Fig. 7 (left)."""
    filters = first_filters(classifier.model)
    numbers = filters[0].numel()  # of a filter
    components = filter_components(classifier, min(MOST_COMPONENTS, len(filters), numbers))
    return [
        paragraph(
            "The principal components of the first layer's filters, the strongest first (Fig. 7, "
            "left): of a well-trained model they look like edges, waves and spots of colour."
        ),
        themed_figure(
            lambda theme: draw_filters(components, theme), "principal components of the filters"
        ),
    ]


def _positions(classifier: Classifier) -> list[Block]:
    """Fig. 7 (centre)."""
    similarity = position_similarity(classifier)
    text = (
        "How much alike the model's position of a patch and those of all others are, a tile for each "
        f"patch (Fig. 7, centre): {similarity.meaning}."
    )
    alt = "similarity of the position embeddings of all patches, tile by tile"
    return [paragraph(text), themed_figure(lambda theme: draw_positions(similarity, theme), alt)]


def _distance(classifier: Classifier, images: Images) -> list[Block]:
    """Fig. 7 (right)."""
    distance = attention_distance(classifier, images)
    text = (
        "How far from a patch, in pixels, what it attends to is (Fig. 7, right): a dot for each head "
        "of a layer. Heads near the dashed line look everywhere alike, those near zero at their own "
        "surroundings."
    )
    alt = "mean attention distance of each head by layer"
    return [paragraph(text), themed_figure(lambda theme: draw_distance(distance, theme), alt)]
