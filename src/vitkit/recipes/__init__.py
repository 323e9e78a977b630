"""Named recipes: functions that return a Recipe. The docstring of each says the command, what it
costs, and what it reached.
"""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "HUB": "table_4",
    "Like": "finetuning",
    "ON_HUB": "table_4",
    "PRESETS": "finetuning",
    "RECIPES": "named",
    "SIDES": "table_4",
    "SWEEP": "table_4",
    "TABLE_4": "table_4",
    "UNCROPPED": "table_4",
    "UNMIRRORED": "table_4",
    "bit_crops": "table_4",
    "choose_pretrained": "finetuning",
    "digits": "small",
    "facts_of": "paper",
    "few_pixels": "table_4",
    "finetune": "finetuning",
    "listing": "named",
    "recipe": "named",
    "scratch": "small",
    "vtab_task": "table_4",
    "with_model": "named",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
