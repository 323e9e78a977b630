"""The config.json of timm's repositories: what it says, and what is written there.

`json` is that file's object, {} without one. Fields are in its "pretrained_cfg", where timm keeps
what belongs to the weights, or at the top.
"""

from math import floor

from vitkit.data import Preprocessing
from vitkit.models import ModelConfig
from vitkit.weights.labels import usual_labels

RULES = {"center": "shorter", "squash": "square"}  # timm's crop_mode -> Preprocessing.rule


def input_size(json: dict) -> tuple[int, int] | None:
    """(height, width) of the model's images; None if it does not say."""
    arguments = json.get("model_args") or {}
    pretrained = json.get("pretrained_cfg") or {}
    size = arguments.get("img_size") or pretrained.get("input_size")
    if not isinstance(size, list):
        size = [size, size]
    size = size[-2:]  # input_size is (channels, height, width)
    numbers = all(isinstance(side, int) and side > 0 for side in size)
    if not numbers or len(size) != 2:
        return None
    return tuple(size)


def labels_of(json: dict, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """Its names of the classes, or the usual ones with a note."""
    pretrained = json.get("pretrained_cfg") or {}
    names = json.get("label_names") or pretrained.get("label_names")
    if isinstance(names, list) and len(names) == classes:
        return tuple(map(str, names)), []
    return usual_labels(classes)


def written_preprocessing(
    json: dict, image: tuple[int, int]
) -> tuple[Preprocessing, list[str]] | None:
    """The preprocessing that it describes, for a model of this size, with notes; None if it has
    none.

    As timm.data.create_transform: resize to size / crop_pct, then crop `size` out of the centre.
    """
    values = json.get("pretrained_cfg") or {}
    if not values:
        return None
    size = input_size({"pretrained_cfg": values}) or image
    crop_pct = values.get("crop_pct") or 1.0
    crop_mode = values.get("crop_mode") or "center"
    notes = []
    if crop_mode not in RULES:
        sentence = f"its crop_mode {crop_mode!r} is not known here; taken as center"
        notes.append(f"preprocessing: {sentence}")
        crop_mode = "center"
    resize = max(floor(side / crop_pct) for side in size)
    if crop_mode == "squash" and crop_pct >= 1:  # resized to `size` itself: there is no crop
        resize = 0
    preprocessing = Preprocessing(
        size=size,
        rule=RULES[crop_mode],
        resize=resize,
        interpolation=values.get("interpolation") or "bicubic",
        mean=tuple(values.get("mean") or (0.5,) * 3),
        std=tuple(values.get("std") or (0.5,) * 3),
    )
    return preprocessing, notes


def repository(
    config: ModelConfig,
    preprocessing: Preprocessing,
    labels: tuple[str, ...],
    architecture: dict,
    layers: dict,
) -> dict:
    """The whole config.json: the architecture, and in pretrained_cfg the preprocessing and the
    names of layers that timm wants to know."""
    height, width = preprocessing.size
    crop_mode = next(mode for mode, rule in RULES.items() if rule == preprocessing.rule)
    crop_pct = 1.0
    if preprocessing.resize:
        crop_pct = min(height, width) / preprocessing.resize
    pretrained = {
        "input_size": [config.channels, height, width],
        "interpolation": preprocessing.interpolation,
        "crop_pct": crop_pct,
        "crop_mode": crop_mode,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": config.classes,
        **layers,
    }
    json = {**architecture, "num_classes": config.classes, "pretrained_cfg": pretrained}
    if config.classes:
        json["label_names"] = list(labels)
    return json
