"""The config.json of timm's repositories: what it says, and what is written there."""

from math import floor

from vitkit.data import Preprocessing
from vitkit.models import ModelConfig
from vitkit.weights.labels import usual_labels

RULES = {"center": "shorter", "squash": "square"}  # of a crop_mode


def input_size(json: dict) -> tuple[int, int] | None:
    """Height and width of images that timm's config.json names."""
    arguments = json.get("model_args") or {}
    size = arguments.get("img_size") or (json.get("pretrained_cfg") or {}).get("input_size")
    if not isinstance(size, list):
        size = [size, size]
    size = size[-2:]  # (channels, height, width)
    numbers = all(isinstance(side, int) and side > 0 for side in size)
    return tuple(size) if numbers and len(size) == 2 else None


def labels_of(json: dict, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The classes' names that it has, or the usual ones, with the note about them."""
    names = json.get("label_names") or (json.get("pretrained_cfg") or {}).get("label_names")
    if isinstance(names, list) and len(names) == classes:
        return tuple(map(str, names)), []
    return usual_labels(classes)


def written_preprocessing(
    json: dict, image: tuple[int, int]
) -> tuple[Preprocessing, list[str]] | None:
    """The preprocessing in it, for a model of this size, with notes; None if it has none."""
    values = json.get("pretrained_cfg") or {}
    if not values:
        return None
    size = input_size({"pretrained_cfg": values}) or image
    share = values.get("crop_pct") or 1.0
    mode = values.get("crop_mode") or "center"
    notes = []
    if mode not in RULES:
        notes.append(f"preprocessing: its crop_mode {mode!r} is not known here; taken as center")
        mode = "center"
    resize = max(floor(side / share) for side in size)
    if mode == "squash" and share >= 1:  # the resize is all there is
        resize = 0
    preprocessing = Preprocessing(
        size=size,
        rule=RULES[mode],
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
    """All of it: the architecture, and in pretrained_cfg the preprocessing and the names of layers that timm wants to know."""
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
