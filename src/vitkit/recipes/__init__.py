"""Recipes: a Recipe is one value with all settings of a run. Named recipes are functions that return one; the
docstring of each gives the command, its cost, and the measured accuracy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
