"""The commands as functions of the same names: they take settings and return a frozen value."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
