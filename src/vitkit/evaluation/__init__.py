"""Evaluators: they measure how good a model is on images, as metrics with a unit."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
