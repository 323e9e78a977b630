"""Looking at models and results: what a model looks at, comparisons of two models, figures, HTML
pages, contact sheets."""

from vitkit.inspection.attention import raw_attention
from vitkit.inspection.cka import Alignment, alignment
from vitkit.inspection.compare import Comparison, compare
from vitkit.inspection.distance import AttentionDistance, attention_distance
from vitkit.inspection.entropy import AttentionEntropy, attention_entropy
from vitkit.inspection.filters import Filters, filter_components
from vitkit.inspection.gradients import class_relevance, gradient_rollout
from vitkit.inspection.occlusion import Occlusion, occlusion_curves
from vitkit.inspection.positions import PositionSimilarity, position_similarity
from vitkit.inspection.rollout import rollout
from vitkit.inspection.sheet import contact_sheet
from vitkit.inspection.states import TokenNorms, patch_similarity, token_colours, token_norms

__all__ = [
    "Alignment",
    "AttentionDistance",
    "AttentionEntropy",
    "Comparison",
    "Filters",
    "Occlusion",
    "PositionSimilarity",
    "TokenNorms",
    "alignment",
    "attention_distance",
    "attention_entropy",
    "class_relevance",
    "compare",
    "contact_sheet",
    "filter_components",
    "gradient_rollout",
    "occlusion_curves",
    "patch_similarity",
    "position_similarity",
    "raw_attention",
    "rollout",
    "token_colours",
    "token_norms",
]
