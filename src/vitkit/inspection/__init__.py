"""Looking at models and results: what a model looks at, comparisons of two models, figures, HTML
pages, contact sheets.
"""

from vitkit.system.lazy import lazily

_FILES = {
    "architecture.drawing": "check_drawing draw_architecture write_architecture",
    "catalogue": "FIGURES FigureKind Plate Subject figure_section missing_section model_sections",
    "comparison": "Comparison compare",
    "figures.alignment": "Alignment alignment draw_alignment",
    "figures.attention_maps": "logits_and_rollout raw_attention rolling rollout",
    "figures.attention_statistics": (
        "AttentionDistance AttentionEntropy attention_distance attention_entropy draw_distance "
        "draw_entropy"
    ),
    "figures.embedding": (
        "Filters PositionSimilarity draw_filters draw_positions filter_components "
        "position_similarity"
    ),
    "figures.occlusion": "Occlusion draw_occlusion occlusion_curves",
    "figures.passes": "READER check_has_attention check_transformer layer_names",
    "figures.relevance": "class_relevance gradient_rollout",
    "figures.token_states": (
        "TokenNorms draw_colours draw_norms draw_similarity patch_similarity token_colours "
        "token_norms"
    ),
    "pages.explorer": "write_explorer",
    "pages.html": (
        "Active Block bullets columns drawing folded gallery join marking matrix pairs paragraph "
        "picture section table tag themed_figure working_style write_page"
    ),
    "photographs": (
        "Tile captioned contact_sheet darkened draw_looked image_rows membership over_image "
        "photograph_and_map whole_pixels"
    ),
    "plots": "Curve DARK LIGHT Panel THEMES Theme plot themed write_figure",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
