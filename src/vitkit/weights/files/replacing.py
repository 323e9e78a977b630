"""What writing a model may replace: an earlier model, and nothing of anybody else's."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from vitkit.weights.files.lazy import KEY, read_json
from vitkit.weights.files.opening import is_written_by_vitkit
from vitkit.weights.provenance.licenses import CARD, FILE, NAMES, License, digest, read_text

DESCRIPTIONS = ("config.json", "preprocessor_config.json")
"""Files that say what the weights beside them are."""
MODEL = (*DESCRIPTIONS, "model.safetensors")
"""With the card, all that vitkit writes to a directory."""
SIGNATURE = re.compile(r"(.*)\n<!-- written by vitkit: ([0-9a-f]{16}) -->\n", re.DOTALL)


def check_model_replaceable(path: Path, descriptions: Iterable[str]) -> None:
    """Raises ValueError unless a model with these descriptions can be written to a directory
    without a loss: it is new or empty, or holds an earlier model that vitkit wrote. What else it
    holds stays."""
    if not path.exists():
        if path.is_symlink():
            raise ValueError(f"{path} is a link to nothing; make its target, or give another name")
        return
    if not path.is_dir():
        raise ValueError(
            f"{path} is a file, and a model is written to a directory; give another name"
        )
    for name in (*MODEL, CARD, *NAMES):
        if (path / name).is_dir():
            raise ValueError(f"{path / name} is a directory; give another name than {path}")

    # A directory of somebody's, in which no model is; .git and its like do not count
    others = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
    others = [name for name in others if name not in (*MODEL, CARD, *NAMES)]
    existing = [name for name in MODEL if (path / name).exists()]
    if others and not existing:
        raise ValueError(
            f"{path} holds other files ({', '.join(others[:3])}) and no model; give a directory of "
            "its own"
        )

    # Files of these names that are not a model's
    if existing and not is_written_by_vitkit(path):
        raise ValueError(
            f"{path / existing[0]} is not of a model that vitkit wrote, so it is not replaced; give "
            "another directory, or remove it"
        )

    # A description that would stay beside the new model, and describe it wrongly
    for name in DESCRIPTIONS:
        if name in existing and name not in descriptions:
            raise ValueError(
                f"{path / name} describes an earlier model, and this format would not replace it; "
                "remove it, or give another directory"
            )


def check_license(path: Path, license: License | None) -> list[Path]:
    """The texts of an earlier model's licence in a directory, which must go when the new model is
    written. Raises ValueError if somebody put another licence there than the new model's."""
    obsolete = []
    for name in NAMES:
        file = path / name
        text = read_text(file)
        if not text or (license and license.text == text):
            continue
        if digest(text) == _noted_license(path):
            if name != FILE or not (license and license.text):
                obsolete.append(file)
        else:
            check_license_text(file, license)
    return obsolete


def check_license_text(file: Path, license: License | None) -> None:
    """Raises ValueError if a file holds another licence than that whose text is to be written."""
    if license and license.text and file.exists() and read_text(file) != license.text:
        raise ValueError(
            f"{file} is there and is not the licence of this model ({license.called}), which goes "
            "with it; give another directory or name, or remove it"
        )


def _noted_license(path: Path) -> str | None:
    """What the model in a directory has noted of the text of its licence."""
    try:
        return read_json(path / "config.json")[KEY]["license"]["text_digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
    """Raises ValueError if a file of that name exists and vitkit did not write a model to it: somebody
    may need it, such as a download, or a checkpoint with the state of its optimiser."""
    if path.is_dir():
        raise ValueError(f"{path} is a directory; give the name of a file")
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{path} is a link to nothing; make its target, or give another name")
    if path.exists() and not is_written_by_vitkit(path):
        raise ValueError(
            f"{path} exists and holds no model that vitkit wrote, so it is not replaced; give "
            "another name, or remove it"
        )
