"""`vitkit faster`: the fastest model that loses no more accuracy than is allowed: candidates of this
machine, evaluated and timed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
