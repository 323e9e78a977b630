"""Training objectives: the paper's classification and masked patch prediction, MAE and DINO, and a class for every pixel."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
