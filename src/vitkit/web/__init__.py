"""Common parts of all pages: addresses on this machine, the check of Host headers, secrets, and limits of
connections."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
