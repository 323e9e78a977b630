"""Figures and pages about models and results: attention, comparisons of two models, HTML pages, contact
sheets.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
