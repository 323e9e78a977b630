"""`vitkit inspect`: figures of what a model has learned and what it looks at, and a page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
