"""Many runs as one: a grid of recipes, and the protocols that are grids."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
