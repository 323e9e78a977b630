"""Tools to maintain a data set: statistics, duplicates, and shards.

Training does not need this package.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
