"""Models as files: loaded from any format, saved for every library, and proved to compute the same
there.

Each name is imported when it is first used, so the description of a model can be read without
PyTorch.
"""

from vitkit.system.lazy import lazily

_FILES = {
    "adoption": (
        "COLOURS adopt headless preprocessing_for preprocessing_for_channels rebuilt with_zero_head"
    ),
    "classifier": "Classifier check_answers evaluating no_answer with_temperature",
    "destination": "check_model_replaceable is_somebodys state_license",
    "files.content": "DAMAGE",
    "files.hub": "hub_answers hub_host paths_in push",
    "files.safetensors": "write_safetensors",
    "fitting": "at_own_proportions at_stride changed_preprocessing fitted_to",
    "formats": "format_of formats_for",
    "formats.shapes": "STATISTICS",
    "given": "ModelLike Overrides hints_of",
    "hints": "CREATE Hints",
    "licenses": (
        "CARD License NAMES check_may_be_shared chosen license_text license_to_json read_license"
    ),
    "origins": "called_in",
    "outputs": "Activation activate activate_array imagenet21k_wordnet imagenet_labels numbered",
    "proof": "Proof Reading check_reading convert",
    "published": (
        "SOURCES Published all_published find_published is_pattern nearest_published published_called"
    ),
    "rules": "write",
    "store": "check_savable create load load_as load_for load_with_account save",
    "unknown": "Unknown direction_and_length",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
