"""Exporting models as files for other programs, with a check on real images before a file gets its
name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
