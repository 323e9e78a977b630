"""Labelling in conversation: which photographs to ask a person about, the answers, and the page for
them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
