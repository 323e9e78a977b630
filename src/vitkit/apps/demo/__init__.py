"""`vitkit app`: a page on which one drops a photograph and sees the answer and what the model looked at."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
