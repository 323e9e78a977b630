"""From images, files or streams to named classes with probabilities, and to files of
predictions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
