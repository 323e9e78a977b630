"""Suites: several tasks, one protocol, and the means that a model is judged by. VTAB is one, the
robustness suite another; users write their own suites as TOML files.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
