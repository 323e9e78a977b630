"""Models as files: loaded from any format, saved for every library, and proved to be the same
there.

Each name is imported when it is first used: what is said of a model is read without PyTorch.
"""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Classifier": "classifier",
    "License": "licenses",
    "Proof": "proof",
    "adopt": "adopting",
    "at_stride": "fitting",
    "convert": "proof",
    "create": "creating",
    "fitted_to": "fitting",
    "load": "store",
    "load_as": "store",
    "load_for": "store",
    "save": "store",
}
__all__ = list(_FILE_OF)
__getattr__ = lazily(__name__, _FILE_OF)
