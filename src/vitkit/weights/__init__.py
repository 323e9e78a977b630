"""Models as files: loaded from any format, saved for every library, and proved to be the same
there.

Each name is imported when it is first used: what is said of a model is read without PyTorch.
"""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Activation": "activation",
    "CARD": "provenance.licenses",
    "COLOURS": "adaptation.channels",
    "Classifier": "classifier",
    "DAMAGE": "files.lazy",
    "Hints": "adaptation.statements",
    "License": "provenance.licenses",
    "NAMES": "provenance.licenses",
    "Proof": "conversion.proof",
    "STATISTICS": "formats.shapes",
    "Unknown": "unknown",
    "activate": "activation",
    "activate_array": "activation",
    "adopt": "adaptation.adopting",
    "at_stride": "adaptation.fitting",
    "changed_preprocessing": "adaptation.hints",
    "check_may_be_shared": "provenance.licenses",
    "check_model_replaceable": "files.replacing",
    "check_savable": "store",
    "chosen": "provenance.licenses",
    "convert": "conversion.proof",
    "create": "adaptation.creating",
    "evaluating": "classifier",
    "fitted_to": "adaptation.fitting",
    "format_of": "formats",
    "hub_answers": "files.fetch",
    "hub_host": "files.fetch",
    "imagenet21k_wordnet": "labels",
    "imagenet_labels": "labels",
    "is_somebodys": "files.replacing",
    "license_text": "provenance.licenses",
    "license_to_json": "provenance.licenses",
    "load": "store",
    "load_as": "store",
    "load_for": "store",
    "load_with_account": "store",
    "numbered": "labels",
    "paths_in": "files.fetch",
    "preprocessing_for": "adaptation.adopting",
    "preprocessing_for_channels": "adaptation.channels",
    "push": "files.fetch",
    "read_license": "provenance.licenses",
    "save": "store",
    "state_license": "conversion.writing",
    "with_temperature": "temperature",
    "write": "conversion.rules",
    "write_safetensors": "files.safetensors",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
