"""Named recipes: functions that return a Recipe. The docstring of each gives the command, its cost,
and the accuracy that it reached.
"""

from vitkit.system.lazy import lazily

_FILES = {
    "finetuning": "Like PRESETS choose_pretrained finetune",
    "named": "RECIPES listing recipe with_model",
    "paper": "facts_of",
    "small": "digits scratch",
    "table_4": (
        "HUB ON_HUB SIDES SWEEP TABLE_4 UNCROPPED UNMIRRORED bit_crops few_pixels vtab_task"
    ),
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
