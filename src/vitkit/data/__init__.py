"""From images on disk to batches for a model.

Each name is imported when it is first used, so an image can be read and prepared without PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
