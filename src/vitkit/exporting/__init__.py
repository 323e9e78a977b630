"""Trained models as files for other programs, measured on real images before they get their name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
