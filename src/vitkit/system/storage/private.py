"""Removing information about one machine or one user when a model is passed on."""

import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

from vitkit.system.storage.addresses import MASK, shown_address, without_credentials
from vitkit.system.storage.remote import is_address

LETTERS_BEFORE = r"(?<![\w.:/\\~-])"  # a path does not begin in the middle of a word
_ABSOLUTE = re.compile(LETTERS_BEFORE + r"(?:/[^\s/\"'`<>()\[\],;]+){2,}")


def public(value: Any) -> Any:
    """A value (a text, or a list or dict of values) in a form for other people: only the name of a path outside
    of the working directory, and an address without user, password or signature."""
    if isinstance(value, dict):
        return {public(key): public(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [public(item) for item in value]
    if not isinstance(value, str):
        return value
    if is_address(value):
        try:
            parts = urlsplit(value)
        except ValueError:
            return "an address"
        if parts.scheme.lower() in ("file", "local"):
            return PurePosixPath(parts.path).name
        shown = shown_address(value).replace(f"://{MASK}@", "://")
        return "::".join(re.split(r"[?#]", each, maxsplit=1)[0] for each in shown.split("::"))
    value = without_credentials(value)
    for kind in (PurePosixPath, PureWindowsPath):
        path = kind(value)
        if path.is_absolute() or ".." in path.parts or value.startswith("~"):
            return path.name
    return value


def paths_of_this_machine(text: str) -> list[str]:
    """The absolute paths in a text that exist on this machine."""
    return [path for path in _ABSOLUTE.findall(text) if _exists(path)]


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
