"""Labels that people corrected: gathered, and written as a manifest with its images, which vitkit's
own data room reads."""

import csv
import io
import re
import zipfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from vitkit.system.console.text import LONGEST_NAME, printable

FOLDER = "corrections"  # what the zip file unpacks to
MANIFEST = "corrections.csv"
MOST = 500  # photographs
MOST_BYTES = 500 * 2**20  # of all of them together: they are in memory
SUFFIXES = {"JPEG": ".jpg", "JPEG2000": ".jp2", "TIFF": ".tif"}


@dataclass(frozen=True)
class Correction:
    """A photograph and what is on it, by somebody who knows."""

    name: str
    """The file's name, as it was given."""
    data: bytes
    """The file itself."""
    kind: str
    """Its format, such as JPEG."""
    label: str
    predicted: str
    """What the model said; empty for a model without a head."""


def corrected(known: tuple[Correction, ...], new: Correction) -> tuple[Correction, ...]:
    """The corrections with another one, in the place of an earlier one of the same file.

    Raises ValueError for a label that is empty or no line of text, and for more than there is room
    for.
    """
    label = new.label.strip()
    if not label:
        raise ValueError("say what is on the photograph first")
    if printable(label) != label or "\n" in label or len(label) > LONGEST_NAME:
        raise ValueError(f"a label is one line of text of at most {LONGEST_NAME} characters")
    digest = sha256(new.data).digest()
    others = [old for old in known if sha256(old.data).digest() != digest]
    total = sum(len(old.data) for old in others) + len(new.data)
    if len(others) >= MOST or total > MOST_BYTES:
        raise ValueError(
            f"there are {len(others)} corrections already, as many as are kept here; download them, "
            "and load the page anew to go on"
        )
    return (*others, new)


def write_zip(corrections: tuple[Correction, ...], path: Path) -> None:
    """Write a zip file with a manifest, a row for each correction with its image, its label and
    what was predicted, and with the images themselves."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["image", "label", "predicted"])
    # The images are compressed already
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for number, correction in enumerate(corrections, 1):
            image = f"images/{file_name(number, correction)}"
            file.writestr(f"{FOLDER}/{image}", correction.data)
            rows.writerow([image, correction.label.strip(), correction.predicted])
        file.writestr(f"{FOLDER}/{MANIFEST}", table.getvalue())


def file_name(number: int, correction: Correction) -> str:
    """A name that every file system takes and that is there once: "0001-bee.jpg"."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(correction.name).stem).strip("_")[:60]
    suffix = SUFFIXES.get(correction.kind, f".{correction.kind.lower()}")
    return f"{number:04}-{stem or 'photograph'}{suffix}"
