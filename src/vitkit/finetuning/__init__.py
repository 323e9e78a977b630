"""`vitkit finetune`: from a folder of photographs to a model: a first one in seconds, a better one in
minutes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
