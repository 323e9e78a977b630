"""Models as files: loaded from any format, saved for every library, and tested to compute equal
results there.

Each name is imported when it is first used, so the description of a model can be read without
PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
