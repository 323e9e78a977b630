"""Looking at models and results: what a model looks at, comparisons of two models, figures, HTML
pages, contact sheets.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
