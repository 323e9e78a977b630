"""Applications: each is a package of its own with its logic, function, page and texts. The core
does not import any application, and applications do not import each other."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
