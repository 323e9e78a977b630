"""Find files whose names differ from those in a table: tables come from systems that ignore the case
of letters, and some omit the suffix.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from vitkit.data.formats.folder import IMAGE_SUFFIXES

LOOKED_AT = 1000  # number of names, spread evenly, that are checked before folders are listed


def existing_names(root: Path, names: Sequence[str]) -> list[str]:
    """Replace each relative name by that of its file if only one file matches: a name in another case of
    letters, or with a suffix of images that is missing here. Names without such a file stay unchanged.

    Folders are listed only if one of LOOKED_AT names is missing.
    """
    names = list(names)
    step = len(names) // LOOKED_AT + 1
    # pathlib raises exceptions for names that are too long
    if all(os.path.exists(root / name) for name in names[::step]):  # noqa: PTH110
        return names
    folders = _Folders(root)
    known: dict[str, str] = {}
    for row, name in enumerate(names):
        if name not in known:
            known[name] = folders.resolve(name)
        names[row] = known[name]
    return names


class _Folders:
    """Folders below a root, each listed once."""

    def __init__(self, root: Path):
        self.root = root
        self.listed: dict[str, dict[str, list[str]]] = {}
        """By folder: its entries by name in lower case, with and without suffix."""

    def resolve(self, name: str) -> str:
        """The relative name of the file that `name` means; `name` itself if there is none, or several."""
        folder = ""
        *above, last = name.split("/")
        for part in above:
            found = self._find(folder, part, with_suffixes=False)
            folder = f"{folder}{found or part}/"
        has_suffix = os.path.splitext(last)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122
        found = self._find(folder, last, with_suffixes=not has_suffix)
        if found is None:
            return name
        return folder + found

    def _find(self, folder: str, name: str, with_suffixes: bool) -> str | None:
        """The entry of a folder with this name, or the only one that matches it; otherwise None."""
        if folder not in self.listed:
            self.listed[folder] = self._list(folder)
        entries = self.listed[folder]
        candidates = entries.get(name.casefold(), [])
        if not candidates and with_suffixes:
            candidates = entries.get(f"{name.casefold()}.", [])
        if name in candidates:
            return name
        if len(candidates) == 1:
            return candidates[0]
        return None

    def _list(self, folder: str) -> dict[str, list[str]]:
        entries: dict[str, list[str]] = {}
        try:
            found = sorted(os.listdir(self.root / folder))  # noqa: PTH208 names are enough
        except OSError:
            return {}
        for entry in found:
            entries.setdefault(entry.casefold(), []).append(entry)
            stem, suffix = os.path.splitext(entry)  # noqa: PTH122
            if suffix.lower() in IMAGE_SUFFIXES:
                entries.setdefault(f"{stem.casefold()}.", []).append(entry)
        return entries
