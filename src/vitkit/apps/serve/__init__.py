"""`vitkit serve` and `vitkit app`: a model served over HTTP, in batches, within limits and without
losing an accepted request, and its page in the browser."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
