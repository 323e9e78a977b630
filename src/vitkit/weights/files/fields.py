"""The types of the fields that are read from other libraries' JSON files.

Everything else in such a file is left alone. Which values make sense is the formats' business: here
a list where a number is expected ends in a sentence that names the field.
"""

from math import isfinite

Fields = dict[str, "str | Fields"]

NUMBER = "a finite number"
WHOLE = "a whole number"
TEXT = "a text"
CHOICE = "a number or a name"
NUMBERS = "a list of finite numbers"
OBJECT = "an object"
SIDES = "pixels: a whole number, a list of them, or an object"
SWITCH = "true or false"
KINDS = {
    NUMBER: (int, float), WHOLE: int, TEXT: str, CHOICE: (int, str), NUMBERS: list,
    OBJECT: dict, SIDES: (int, list, dict), SWITCH: (bool, int),
}  # fmt: skip

# config.json, of Transformers and of timm
TIMM = {
    "crop_pct": NUMBER, "crop_mode": TEXT, "interpolation": TEXT, "mean": NUMBERS, "std": NUMBERS,
}  # fmt: skip
ARGUMENTS = {"img_size": SIDES, "num_heads": WHOLE, "act_layer": TEXT, "init_values": NUMBER}
CONFIG: Fields = {
    "model_type": TEXT, "hidden_act": TEXT, "pooler_act": TEXT, "problem_type": TEXT,
    "hidden_size": WHOLE, "num_hidden_layers": WHOLE, "intermediate_size": WHOLE,
    "num_attention_heads": WHOLE, "num_channels": WHOLE, "image_size": SIDES, "patch_size": SIDES,
    "layer_norm_eps": NUMBER, "hidden_dropout_prob": NUMBER,
    "attention_probs_dropout_prob": NUMBER, "qkv_bias": SWITCH,
    "architecture": TEXT, "global_pool": TEXT, "model_args": ARGUMENTS, "pretrained_cfg": TIMM,
    **TIMM,
}  # fmt: skip
# preprocessor_config.json, of Transformers
PREPROCESSOR: Fields = {
    "image_processor_type": TEXT, "feature_extractor_type": TEXT, "size": SIDES,
    "crop_size": SIDES, "resample": CHOICE, "rescale_factor": NUMBER, "image_mean": NUMBERS,
    "image_std": NUMBERS, "do_resize": SWITCH, "do_center_crop": SWITCH, "do_rescale": SWITCH,
    "do_normalize": SWITCH, "default_to_square": SWITCH,
}  # fmt: skip


def check_fields(values: dict, fields: Fields, within: str = "") -> None:
    """Raises ValueError for a field of another type. A field that is absent or null has none."""
    for name, kind in fields.items():
        value = values.get(name)
        if value is None:
            continue
        if isinstance(kind, dict):
            _check(within + name, value, OBJECT)
            check_fields(value, kind, f"{within}{name}.")
        else:
            _check(within + name, value, kind)


def _check(name: str, value: object, kind: str) -> None:
    """Raises ValueError for a value of another type."""
    right = isinstance(value, KINDS[kind]) and (kind == SWITCH or not isinstance(value, bool))
    if kind == NUMBERS and right:
        right = all(_is_finite(number) for number in value)
    elif kind == NUMBER and right:
        right = _is_finite(value)
    if not right:
        raise ValueError(f"{name} is {repr(value)[:100]}; expected {kind}")


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and isfinite(value)
