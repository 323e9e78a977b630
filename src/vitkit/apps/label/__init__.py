"""`vitkit label`: label photographs on a page: which to ask about, the answers, and the page for them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
