"""Looking at models and results: what a model looks at, comparisons of two models, figures, HTML
pages, contact sheets."""

from vitkit.inspection.attention import raw_attention, rollout
from vitkit.inspection.compare import Comparison, compare
from vitkit.inspection.sheet import contact_sheet

__all__ = ["Comparison", "compare", "contact_sheet", "raw_attention", "rollout"]
