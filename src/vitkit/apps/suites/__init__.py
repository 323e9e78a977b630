"""`vitkit suite`: several tasks, one protocol, and the means by which a model is judged."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
