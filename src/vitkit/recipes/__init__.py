"""Named recipes: functions that return a Recipe. The docstring of each gives the command, its cost,
and the accuracy that it reached.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
