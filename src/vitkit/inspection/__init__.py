"""Looking: (model, images) -> arrays -> pictures and pages."""

from vitkit.inspection.report import report
from vitkit.inspection.sheet import contact_sheet

__all__ = ["contact_sheet", "report"]
