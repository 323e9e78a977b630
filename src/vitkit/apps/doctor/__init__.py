"""`vitkit doctor`: examine this machine, a run, images and a model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
