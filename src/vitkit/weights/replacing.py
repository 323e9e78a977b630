"""What writing a model may replace: an earlier model, and nothing of anybody else's."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from vitkit.weights.files import open_weights
from vitkit.weights.formats import recognise

CARD = "README.md"
DESCRIPTIONS = ("config.json", "preprocessor_config.json")
"""Files that say what the weights beside them are."""
MODEL = (*DESCRIPTIONS, "model.safetensors")
"""With the card, all that vitkit writes to a directory."""
SIGNATURE = re.compile(r"(.*)\n<!-- written by vitkit: ([0-9a-f]{16}) -->\n", re.DOTALL)


def check_replaceable(path: Path, descriptions: Iterable[str]) -> None:
    """Raises ValueError unless a model with these descriptions can be written to a directory
    without a loss: it is new or empty, or holds an earlier model. What else it holds stays."""
    if not path.exists():
        if path.is_symlink():
            raise ValueError(f"{path} is a link to nothing; make its target, or give another name")
        return
    if not path.is_dir():
        raise ValueError(
            f"{path} is a file, and a model is written to a directory; give another name"
        )
    for name in (*MODEL, CARD):
        if (path / name).is_dir():
            raise ValueError(f"{path / name} is a directory; give another name than {path}")

    # A directory of somebody's, in which no model is; .git and its like do not count
    others = sorted(file.name for file in path.iterdir() if file.name not in (*MODEL, CARD))
    others = [name for name in others if not name.startswith(".")]
    existing = [name for name in MODEL if (path / name).exists()]
    if others and not existing:
        raise ValueError(
            f"{path} holds other files ({', '.join(others[:3])}) and no model; give a directory of "
            "its own"
        )

    # Files of these names that are not a model's
    if existing and not _is_a_model(path):
        raise ValueError(
            f"{path / existing[0]} is not of a model that vitkit knows, so it is not replaced; give "
            "another directory, or remove it"
        )

    # A description that would stay beside the new model, and describe it wrongly
    for name in DESCRIPTIONS:
        if name in existing and name not in descriptions:
            raise ValueError(
                f"{path / name} describes an earlier model, and this format would not replace it; "
                "remove it, or give another directory"
            )


def _is_a_model(path: Path) -> bool:
    """Whether a file or directory holds weights of a model that vitkit could open."""
    try:
        return recognise(open_weights(path).tensors) is not None
    except ValueError:
        return False


def signed(card: str) -> str:
    """A model card with a last line, which a reader does not see, of what it was when it was
    written."""
    return f"{card.rstrip()}\n<!-- written by vitkit: {_digest(card.rstrip())} -->\n"


def is_somebodys(card: Path) -> bool:
    """Whether a README.md is there that is not as vitkit wrote it: it stays as it is."""
    if not card.exists():
        return False
    match = SIGNATURE.fullmatch(card.read_text("utf-8", errors="replace"))
    return match is None or _digest(match[1]) != match[2]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_file(path: Path) -> None:
    """Raises ValueError if a file of that name exists and is not of a model that vitkit knows."""
    if path.exists() and not _is_a_model(path):
        raise ValueError(
            f"{path} exists and holds no weights of a model that vitkit knows, so it is not "
            "replaced; give another name"
        )
