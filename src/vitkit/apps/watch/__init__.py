"""`vitkit watch`: classify the images in a folder, and those that arrive there."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
