"""`vitkit study`: the paper's studies on other images, each with its table and its figure."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
