"""Looking at models and results: comparisons of two models, figures, HTML pages, contact sheets."""

from vitkit.inspection.compare import Comparison, compare
from vitkit.inspection.sheet import contact_sheet

__all__ = ["Comparison", "compare", "contact_sheet"]
