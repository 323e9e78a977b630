"""Which runtime is fastest on this machine: speeds measured in turns, and the accuracy that each
loses."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
