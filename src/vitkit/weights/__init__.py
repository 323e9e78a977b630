"""Models as files: loaded from any format, saved for every library, and proved to be the same
there.

Each name is imported when it is first used: what is said of a model is read without PyTorch.
"""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Activation": "outputs",
    "CARD": "licenses",
    "COLOURS": "adoption",
    "Classifier": "classifier",
    "DAMAGE": "files.content",
    "Hints": "hints",
    "License": "licenses",
    "NAMES": "licenses",
    "Proof": "proof",
    "STATISTICS": "formats.shapes",
    "Unknown": "unknown",
    "activate": "outputs",
    "activate_array": "outputs",
    "adopt": "adoption",
    "at_stride": "fitting",
    "changed_preprocessing": "fitting",
    "check_may_be_shared": "licenses",
    "check_model_replaceable": "destination",
    "check_savable": "store",
    "chosen": "licenses",
    "convert": "proof",
    "create": "store",
    "evaluating": "classifier",
    "fitted_to": "fitting",
    "format_of": "formats",
    "hub_answers": "files.hub",
    "hub_host": "files.hub",
    "imagenet21k_wordnet": "outputs",
    "imagenet_labels": "outputs",
    "is_somebodys": "destination",
    "license_text": "licenses",
    "license_to_json": "licenses",
    "load": "store",
    "load_as": "store",
    "load_for": "store",
    "load_with_account": "store",
    "numbered": "outputs",
    "paths_in": "files.hub",
    "preprocessing_for": "adoption",
    "preprocessing_for_channels": "adoption",
    "push": "files.hub",
    "read_license": "licenses",
    "save": "store",
    "state_license": "destination",
    "with_temperature": "classifier",
    "write": "rules",
    "write_safetensors": "files.safetensors",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
