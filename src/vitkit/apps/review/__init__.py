"""`vitkit data review`: labels that are probably wrong, duplicates and odd images."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
