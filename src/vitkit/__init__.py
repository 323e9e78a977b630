"""vitkit: the Vision Transformer paper, whole, as software that people use.

Importing it imports nothing heavy: a public name imports its package when it is first used. The names are
in `__init__.pyi`, here and in each package.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
