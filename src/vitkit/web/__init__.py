"""What all pages share: the address on this machine, the Host check, the secret, connections and their limits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
