"""The config.json of timm's repositories: what it says, and what is written there."""

from math import floor

from vitkit.data import Preprocessing
from vitkit.models import ModelConfig
from vitkit.weights.description import usual_labels


def input_size(said: dict) -> tuple[int, int] | None:
    """Height and width of images that timm's config.json names."""
    args = said.get("model_args") or {}
    size = args.get("img_size") or (said.get("pretrained_cfg") or {}).get("input_size")
    size = size[-2:] if isinstance(size, list) else [size, size]
    return (
        tuple(size)
        if all(isinstance(side, int) and side > 0 for side in size) and len(size) == 2
        else None
    )


def labels_of(said: dict, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The classes' names that it has, or the usual ones, with the note about them."""
    names = said.get("label_names") or (said.get("pretrained_cfg") or {}).get("label_names")
    if isinstance(names, list) and len(names) == classes:
        return tuple(map(str, names)), []
    return usual_labels(classes)


def said_preprocessing(
    config: dict, image: tuple[int, int]
) -> tuple[Preprocessing, list[str]] | None:
    """The preprocessing that it says, for a model of this size, with notes; None where it says none."""
    said = config.get("pretrained_cfg") or {}
    if not said:
        return None
    size = input_size({"pretrained_cfg": said}) or image
    share, mode = said.get("crop_pct") or 1.0, said.get("crop_mode") or "center"
    notes = []
    if mode not in ("center", "squash"):
        notes.append(f"preprocessing: its crop_mode {mode!r} is not known here; taken as center")
    resize = max(floor(side / share) for side in size)
    return Preprocessing(
        size=size, rule="square" if mode == "squash" else "shorter", resize=resize if mode != "squash" or share < 1 else 0,
        interpolation=said.get("interpolation") or "bicubic", mean=tuple(said.get("mean") or (0.5,) * 3),
        std=tuple(said.get("std") or (0.5,) * 3),
    ), notes  # fmt: skip


def repository(
    config: ModelConfig,
    preprocessing: Preprocessing,
    labels: tuple[str, ...],
    said: dict,
    places: dict,
) -> dict:
    """All of it: what is `said` of the architecture, and the `places` in the model that timm wants to know."""
    height, width = preprocessing.size
    cfg = {
        "input_size": [config.channels, height, width],
        "interpolation": preprocessing.interpolation,
        "crop_pct": min(height, width) / preprocessing.resize if preprocessing.resize else 1.0,
        "crop_mode": "center" if preprocessing.rule == "shorter" else "squash",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": config.classes,
    }
    found = {**said, "num_classes": config.classes, "pretrained_cfg": cfg | places}
    return found | ({"label_names": list(labels)} if config.classes else {})
