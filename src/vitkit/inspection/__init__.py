"""Looking at models and results: what a model looks at, comparisons of two models, figures, HTML
pages, contact sheets."""

from vitkit.inspection.attention import raw_attention
from vitkit.inspection.compare import Comparison, compare
from vitkit.inspection.distance import AttentionDistance, attention_distance
from vitkit.inspection.entropy import AttentionEntropy, attention_entropy
from vitkit.inspection.filters import Filters, filter_components
from vitkit.inspection.positions import PositionSimilarity, position_similarity
from vitkit.inspection.rollout import rollout
from vitkit.inspection.sheet import contact_sheet

__all__ = [
    "AttentionDistance",
    "AttentionEntropy",
    "Comparison",
    "Filters",
    "PositionSimilarity",
    "attention_distance",
    "attention_entropy",
    "compare",
    "contact_sheet",
    "filter_components",
    "position_similarity",
    "raw_attention",
    "rollout",
]
