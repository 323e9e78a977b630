"""A written model as timm itself opens it: for the proof, and for the model card."""

import json
from pathlib import Path

from PIL import Image
from torch import Tensor

from vitkit.models import ModelConfig
from vitkit.weights.files import load_state_dict
from vitkit.weights.formats.format import Elsewhere


def open_in_timm(path: Path, name: str, classes: int, arguments: dict) -> Elsewhere:
    """timm's model with the file's tensors, every one of them and no other. Raises ImportError
    without timm."""
    import timm

    model = timm.create_model(name, num_classes=classes, **arguments)
    file = path
    if path.is_dir():
        file = path / "model.safetensors"
    model.load_state_dict(load_state_dict(file), strict=True)
    return Elsewhere(f"timm {timm.__version__}", model)


def pixels_in_timm(path: Path, image: Image.Image) -> Tensor:
    """What timm makes of an image, (1, 3, h, w), by the preprocessing in a written directory.
    Raises ImportError without timm."""
    from timm.data import create_transform, resolve_data_config

    values = json.loads((path / "config.json").read_text("utf-8"))["pretrained_cfg"]
    settings = resolve_data_config(pretrained_cfg=values)
    transform = create_transform(**settings, is_training=False)
    return transform(image)[None]


def example(config: ModelConfig) -> str:
    """How to open a directory with timm."""
    return """\
import timm

model = timm.create_model("local-dir:DIRECTORY", pretrained=True)
"""
