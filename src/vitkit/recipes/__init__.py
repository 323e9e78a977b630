"""Named recipes: functions that return a Recipe. The docstring of each says the command, what it
costs, and what it reached.
"""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "HUB": "crops",
    "Like": "finetuning",
    "ON_HUB": "crops",
    "PRESETS": "finetuning",
    "RECIPES": "named",
    "SIDES": "table_4",
    "SWEEP": "table_4",
    "TABLE_4": "table_4",
    "UNCROPPED": "crops",
    "UNMIRRORED": "crops",
    "bit_crops": "crops",
    "choose_pretrained": "pretrained",
    "digits": "small",
    "facts_of": "paper",
    "few_pixels": "table_4",
    "finetune": "finetuning",
    "listing": "named",
    "recipe": "named",
    "scratch": "small",
    "vtab_task": "crops",
    "with_model": "named",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
