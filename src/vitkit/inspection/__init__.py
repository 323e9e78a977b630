"""Looking: (model, images) -> arrays -> pictures and pages."""

from vitkit.inspection.compare import Comparison, compare
from vitkit.inspection.sheet import contact_sheet

__all__ = ["Comparison", "compare", "contact_sheet"]
