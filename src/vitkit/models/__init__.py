"""From names to configurations to models: `create("B/16")`.

This package needs only torch. It has no loss, optimiser, file format or process group.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
