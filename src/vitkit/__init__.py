"""vitkit: the Vision Transformer paper, whole, as software that people use.

Importing it imports nothing heavy. A public name imports its room when it is first used.
"""

__version__ = "0.1.0"

# Verbs: what commands do, as functions of the same names
_VERBS = (
    "app",
    "batch",
    "bench",
    "compare",
    "convert",
    "doctor",
    "evaluate",
    "export",
    "faster",
    "features",
    "fewshot",
    "finetune",
    "inspect",
    "label",
    "list_models",
    "pack",
    "plan",
    "predict",
    "probe",
    "push",
    "report",
    "review",
    "serve",
    "show",
    "sort",
    "stats",
    "study",
    "suite",
    "teach",
    "train",
    "watch",
)
# Exceptions that callers can handle
_ERRORS = (
    "VitkitError",
    "BadSettings",
    "BadImage",
    "BadData",
    "BadWeights",
    "BadRun",
    "Unsupported",
    "Unavailable",
    "Diverged",
    "WorkerDied",
    "RankLost",
    "Interrupted",
)
# public name -> the room that has it
_ROOM_OF = {
    **dict.fromkeys(_VERBS, "vitkit.verbs"),
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
    "VitClassifier": "vitkit.estimator",
    **dict.fromkeys(_ERRORS, "vitkit.system.errors"),
}
__all__ = ["__version__", *_ROOM_OF]

# Rooms that `import vitkit` is enough for: vitkit.recipes.digits()
_ROOMS = (
    *(
        "acceleration",
        "benching",
        "curation",
        "data",
        "evaluation",
        "exporting",
        "inspection",
        "labelling",
    ),
    "models",
    *("objectives", "prediction", "quick", "recipes", "runtimes", "serving", "studies", "suites"),
    *("training", "verbs", "webapp", "weights"),
)


def __getattr__(name: str):
    if name not in _ROOM_OF and name not in _ROOMS:
        raise AttributeError(f"module 'vitkit' has no attribute {name!r}")
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"vitkit.{name}")
    return getattr(import_module(_ROOM_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, *_ROOMS]
