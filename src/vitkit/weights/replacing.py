"""What writing a model may replace: an earlier model, and nothing of anybody else's."""

import json
from collections.abc import Iterable
from pathlib import Path

from vitkit.weights.files import open_weights

CARD = "README.md"
CONFIG = "config.json"
DESCRIPTIONS = (CONFIG, "preprocessor_config.json")
"""Files that say what the weights beside them are."""
OURS = (*DESCRIPTIONS, "model.safetensors", CARD)
"""All that vitkit writes to a directory."""
MODEL_KEYS = ("vitkit", "architectures", "architecture", "model_type")
"""What a config.json of a model has, of vitkit, Transformers or timm."""


def check_replaceable(path: Path, descriptions: Iterable[str]) -> None:
    """Raises ValueError unless a model with these descriptions can be written to a directory
    without a loss: it is new, or holds an earlier model. What else it holds, such as .git, stays."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(
            f"{path} is a file, and a model is written to a directory; give another name"
        )

    # Somebody's directory, in which no model is
    others = sorted(file.name for file in path.iterdir() if file.name not in OURS)
    if others and not (path / CONFIG).is_file():
        raise ValueError(
            f"{path} holds other files ({', '.join(others[:3])}) and no model; give a directory of "
            "its own"
        )

    # Descriptions that are not a model's, or would describe another model than the new one
    for name in DESCRIPTIONS:
        file = path / name
        if not file.exists():
            continue
        if name == CONFIG and others and not _is_of_a_model(file):
            raise ValueError(
                f"{file} is not a model's, so it is not replaced; give another directory"
            )
        if name not in descriptions:
            raise ValueError(
                f"{file} describes an earlier model, and this format would not replace it; remove "
                "it, or give another directory"
            )


def _is_of_a_model(config: Path) -> bool:
    """Whether a config.json describes a model."""
    try:
        values = json.loads(config.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and any(key in values for key in MODEL_KEYS)


def is_somebodys(card: Path) -> bool:
    """Whether a README.md is there that vitkit did not write: it stays as it is."""
    try:
        return "vitkit" not in card.read_text("utf-8", errors="replace").split("---")[1]
    except FileNotFoundError:
        return False
    except IndexError:  # it has no YAML header
        return True


def check_file(path: Path) -> None:
    """Raises ValueError if a file of that name exists and holds anything else than weights."""
    if not path.exists():
        return
    try:
        open_weights(path)
    except ValueError:
        raise ValueError(
            f"{path} exists and holds no weights, so it is not replaced; give another name"
        ) from None
