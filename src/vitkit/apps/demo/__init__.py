"""The page of `vitkit app`: drop a photograph, see the answer and what the model looked at."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
