"""vitkit: the Vision Transformer paper, whole, as software that people use.

Importing it imports nothing heavy. A public name imports its room when it is first used.
"""

__version__ = "0.1.0"

# public name -> the room that has it
_ROOMS = {
    "ViTConfig": "vitkit.models",
    "VisionTransformer": "vitkit.models",
    "vit": "vitkit.models",
    "hidden_states": "vitkit.models",
    "recording": "vitkit.models",
    "Preprocessing": "vitkit.data",
    "Classifier": "vitkit.weights",
    "create": "vitkit.weights",
    "load": "vitkit.weights",
    "save": "vitkit.weights",
    "Recipe": "vitkit.training",
    "train": "vitkit.training",
    "predict": "vitkit.deploy",
    "VitClassifier": "vitkit.estimator",
}
__all__ = ["__version__", *_ROOMS]


def __getattr__(name: str):
    if name not in _ROOMS:
        raise AttributeError(f"module 'vitkit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return __all__
