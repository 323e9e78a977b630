"""Names of classes: Unicode normalisation, and notes on names that may have another meaning."""

import re
import unicodedata
from collections import Counter

import numpy as np

from vitkit.data.sources.targets import COMMA, SEPARATORS, UNKNOWN_WORDS, as_number, is_in_brackets
from vitkit.system.console.text import some

# Possible separators of the classes of one image
POSSIBLE_SEPARATORS = (COMMA, "/", "+", "&", " ", "_")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")  # as spreadsheets write numbers in many languages


def notes_on(values: np.ndarray, are_several: bool = False) -> list[str]:
    """Notes on names of classes that may have another meaning. are_several: whether images have several
    classes, so that cells have been split into classes."""
    names = sorted(set(values))
    notes = []
    fractions = []
    for name in names:
        number = as_number(name)
        if number is not None and not number.is_integer():
            fractions.append(name)
    if fractions:
        notes.append(
            f"classes are called {some(fractions, 10)}: if these are numbers to predict, set "
            "`data.columns.target='number'`, and correct the labels that are not numbers"
        )
    with_commas = [name for name in names if _DECIMAL_COMMA.fullmatch(name.strip())]
    if with_commas and len(with_commas) > len(names) / 2:
        first = with_commas[0]
        notes.append(
            f"classes are called {some(list(map(repr, with_commas)), 3)}: if these are numbers to predict, write them "
            f"with a decimal point, as {first.strip().replace(',', '.')}"
        )
    joined = []
    for name in names:
        is_list = name.startswith("[") and is_in_brackets(name)
        if is_list or any(separator in name for separator in SEPARATORS):
            joined.append(name)
    if joined and not are_several:
        notes.append(
            f"classes are called {some(joined[:3], 10)}: if these are several classes each, set "
            "`data.columns.target='classes'`"
        )
    unknown = [name for name in names if name.strip().casefold() in UNKNOWN_WORDS]
    if unknown:
        notes.append(
            f"classes are called {some(list(map(repr, unknown)), 10)}: if that means that the label is "
            "unknown, leave these images out"
        )
    notes += _note_on_compounds(names)
    notes += _note_on_spellings(names)
    return notes


def _note_on_compounds(names: list[str]) -> list[str]:
    """A note on classes such as "cat, dog" whose parts are classes too; empty if there are none."""
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
                f"classes are called {some(compound, 3)}, and their parts are classes too: if they are several "
                f"classes each, set {setting}"
            ]
    return []


def _note_on_spellings(names: list[str]) -> list[str]:
    """A note on classes whose names differ only in the case of letters, spaces or dashes; empty if there
    are none."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        if as_number(name) is not None:
            continue  # -1 and 1 are not spellings of one name
        plain = " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
        spellings.setdefault(plain, []).append(name)
    similar = [group for group in spellings.values() if len(group) > 1]
    if not similar:
        return []
    listed = "; ".join(" and ".join(group) for group in similar[:3])
    if len(similar) > 3:
        listed += "; ..."
    return [
        f"{listed} are different classes, although their names hardly differ: if they are one class, give "
        "their folders, or their rows of the table, the same name"
    ]


def composed(names: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Normalise names of classes to Unicode's composed form, NFC; and a note if that joins some.

    "é" may be one character or two, an "e" and an accent, as macOS writes the names of folders. They look
    equal.
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
            f"written in several ways that look equal (composed and decomposed Unicode), and read as one "
            f"class each: {some(joined)}",
        )
    return np.array([forms[name] for name in names], dtype=object), notes
