"""Names of classes: one form for those that look alike, and notes on names that may have been meant otherwise."""

import unicodedata
from collections import Counter

import numpy as np

from vitkit.data.sources.targets import COMMA, SEPARATORS, UNKNOWN_WORDS, as_number, is_in_brackets
from vitkit.system.console.text import some

# What may stand between the classes of one image
POSSIBLE_SEPARATORS = (COMMA, "/", "+", "&", " ", "_")


def notes_on(values: np.ndarray, are_several: bool = False) -> list[str]:
    """Notes on names of classes that may have been meant otherwise. are_several: whether an image has
    several classes, so that they have been taken apart."""
    names = sorted(set(values))
    notes = []
    fractions = []
    for name in names:
        number = as_number(name)
        if number is not None and not number.is_integer():
            fractions.append(name)
    if fractions:
        notes.append(
            f"classes are called {some(fractions, 10)}: if these are numbers to predict, say "
            "`data.columns.target='number'`, and mend the labels that are none"
        )
    joined = []
    for name in names:
        is_list = name.startswith("[") and is_in_brackets(name)
        if is_list or any(separator in name for separator in SEPARATORS):
            joined.append(name)
    if joined and not are_several:
        notes.append(
            f"classes are called {some(joined[:3], 10)}: if these are several each, say "
            "`data.columns.target='classes'`"
        )
    unknown = [name for name in names if name.strip().casefold() in UNKNOWN_WORDS]
    if unknown:
        notes.append(
            f"classes are called {some(list(map(repr, unknown)), 10)}: if that says that the label is "
            "unknown, leave these images out"
        )
    notes += _about_parts(names)
    notes += _about_spellings(names)
    return notes


def _about_parts(names: list[str]) -> list[str]:
    """A note on classes such as "cat, dog" whose parts are classes too; none if there are no such."""
    known = set(names)
    for separator in POSSIBLE_SEPARATORS:
        compound = []
        for name in names:
            parts = [part.strip() for part in name.split(separator) if part.strip()]
            if len(parts) > 1 and known.issuperset(parts):
                compound.append(repr(name))
        if compound:
            setting = "`data.columns.target='classes'`"
            if separator != COMMA:
                setting = f"`data.columns.separator={separator!r}`"
            return [
                f"classes are called {some(compound, 3)}: their parts are classes too: if they are several "
                f"each, say {setting}"
            ]
    return []


def _about_spellings(names: list[str]) -> list[str]:
    """A note on classes whose names differ in the case of letters, spaces or dashes only; none if there
    are no such."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        if as_number(name) is not None:
            continue  # -1 and 1 are no spellings
        plain = " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
        spellings.setdefault(plain, []).append(name)
    alike = [some_names for some_names in spellings.values() if len(some_names) > 1]
    if not alike:
        return []
    listed = "; ".join(" and ".join(some_names) for some_names in alike[:3])
    if len(alike) > 3:
        listed += "; ..."
    return [
        f"{listed} are classes of their own, and their names hardly differ: if they are one class, give "
        "their folders, or their rows of the table, one name"
    ]


def composed(names: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Names of classes in Unicode's composed form, NFC, and a note if that joins some.

    "é" may be one character or two, an "e" and an accent, as macOS writes the names of folders.
    People see no difference.
    """
    distinct = set(names)
    forms = {name: unicodedata.normalize("NFC", name) for name in distinct}
    if all(name == form for name, form in forms.items()):
        return names, ()
    spellings = Counter(forms.values())
    joined = sorted(form for form, count in spellings.items() if count > 1)
    notes: tuple[str, ...] = ()
    if joined:
        notes = (
            f"written in several ways that look alike (composed and decomposed Unicode), and one "
            f"class each: {some(joined)}",
        )
    return np.array([forms[name] for name in names], dtype=object), notes
