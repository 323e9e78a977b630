"""What commands do, as functions of the same names: settings in, a frozen value out."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "As": "learning_data",
    "DATA": "words",
    "Data": "arguments",
    "DataColumns": "arguments",
    "Device": "arguments",
    "FewshotAccuracy": "evaluation.fewshot",
    "IMAGES": "arguments",
    "Images": "arguments",
    "MISSING": "settings",
    "MODEL": "words",
    "Model": "arguments",
    "ModelHints": "arguments",
    "ModelOrFile": "arguments",
    "OnBadImage": "arguments",
    "Option": "settings",
    "Precision": "arguments",
    "Runtime": "arguments",
    "Verb": "definition",
    "as_words": "learning_data",
    "broken_images": "leaving_out",
    "default_of": "settings",
    "docstrings": "settings",
    "fewshot": "evaluation.fewshot",
    "loaded_for_features": "learning_data",
    "option_name": "settings",
    "options": "settings",
    "parts_of": "learning_data",
    "pick_precision": "arguments",
    "print_result": "definition",
    "result": "definition",
    "splits_to_learn_from": "learning_data",
    "verb": "definition",
    "without_broken": "leaving_out",
    "without_unknown": "leaving_out",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
