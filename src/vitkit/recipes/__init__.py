"""A Recipe is everything that decides a run, as one value. Named recipes are functions that return one; the
docstring of each gives the command, its cost, and the accuracy that it reached.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
