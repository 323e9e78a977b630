"""`vitkit bench`: how fast a model is on this machine in every runtime and precision, and the accuracy
that each loses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
