"""What happens on `vitkit app`'s page: functions of what a person gave and chose, which return what
is to be shown. The page itself is in page.py."""

import csv
import io
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.prediction import csv_cell
from vitkit.system.console.text import LONGEST_NAME, counted, printable, printable_name
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.webapp import html
from vitkit.webapp.viewer import (
    Answer,
    Photograph,
    Viewer,
    drawn,
    open_photograph,
    softened,
)

ALL = "all layers"
ONE = "one layer"
MEAN = "mean of all"


@dataclass(frozen=True)
class Correction:
    """A photograph and its right class, given by a person."""

    name: str
    """The file's name, as it was given."""
    data: bytes
    """The file itself."""
    kind: str
    """Its format, such as JPEG."""
    label: str
    predicted: str
    """What the model said; empty for a model without a head."""


class Current(NamedTuple):
    """The photograph that one person looks at."""

    photograph: Photograph
    answers: tuple[Answer, ...]
    """One for each model."""


class Choice(NamedTuple):
    """The view of a model's attention that a person has chosen."""

    layers: str
    """ALL or ONE."""
    layer: int
    """From 1, as people count."""
    head: str
    """MEAN, or a number from 1."""
    query: tuple[int, int] | None
    """The patch that looks, or None for what the model's head reads."""


def answer_file(
    payload: Any, viewers: Sequence[Viewer], folder: Path
) -> tuple[Current | None, str]:
    """The models' answers to an uploaded file, and a sentence if there is none.

    Args:
        payload: The description of the file that the request holds, {"path", "orig_name"}; None if the
            person took the photograph away. The sender of the request chooses it.
        viewers: The models.
        folder: Where uploaded files are. No other file is opened.
    """
    if payload is None:
        return None, ""
    path = uploaded(payload, folder)
    if path is None:  # the same sentence, whether there is such a file or not
        return None, html.problem("no file arrived; choose it again")
    name = payload.get("orig_name")
    if not isinstance(name, str) or not name:
        name = path.name
    try:
        photograph = open_photograph(path, name, viewers)
        pairs = zip(viewers, photograph.views, strict=True)
        answers = tuple(viewer.answer(view) for viewer, view in pairs)
    except (VitkitError, OSError) as error:
        return None, html.problem(printable(str(error)))
    return Current(photograph, answers), ""


def uploaded(payload: Any, folder: Path) -> Path | None:
    """The path of an uploaded file, by the description of it in a request; None unless it lies in the
    folder of uploads, wherever links lead."""
    if not isinstance(payload, dict) or not isinstance(payload.get("path"), str):
        return None
    try:
        path = Path(payload["path"]).resolve(strict=True)
    except (
        OSError,
        ValueError,
        RuntimeError,
    ):  # not there, no name of a file, or links in a circle
        return None
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        return None
    return path


def reader_of(viewer: Viewer) -> str:
    """The reading of a model's head, in words."""
    return viewer.classifier.model.config.pooling.words


def look(current: Current, number: int, viewer: Viewer, choice: Choice) -> tuple:
    """The picture for a choice, uint8 (h, w, 3), and a sentence that says what it shows, as HTML.

    Without attention, the picture is the photograph as the model gets it.
    """
    view = current.photograph.views[number]
    if not viewer.layers:
        return view.pixels, html.caption(f"No map: {viewer.why_no_map}.")
    reader = reader_of(viewer)
    if choice.layers == ALL:
        weights = current.answers[number].rollout
        words = (
            f"Attention rollout: what reaches {reader} through {counted(len(viewer.layers), 'layer')}. "
            "Click a patch to see where it looks."
        )
        return drawn(view, weights), html.caption(words)

    # One layer, and a head or all
    layer = min(max(int(choice.layer), 1), len(viewer.layers)) - 1
    head = None
    heads = f"mean of {counted(viewer.heads, 'head')}"
    if choice.head != MEAN:
        head = int(choice.head) - 1
        heads = f"head {choice.head} of {viewer.heads}"
    try:
        weights = viewer.look(view, layer, head, choice.query)
    except VitkitError as error:
        return view.pixels, html.problem(str(error))
    if choice.query is not None:
        reader = f"the framed patch (row {choice.query[0] + 1}, column {choice.query[1] + 1})"
    name = viewer.layers[layer].capitalize()
    words = f"{name}, {heads}: where {reader} looks."
    return drawn(view, softened(weights), choice.query), html.caption(words)


def correct(
    current: Current | None, known: tuple[Correction, ...], label: str | None
) -> tuple[tuple[Correction, ...], str]:
    """The corrections with one for the current photograph, and a sentence, as HTML."""
    if current is None:
        return known, html.problem("there is no photograph to correct; choose one first")
    photograph = current.photograph
    predicted = ""
    if current.answers[0].classes:
        predicted = current.answers[0].classes[0][0]
    new = Correction(photograph.name, photograph.data, photograph.kind, label or "", predicted)
    try:
        known = corrected(known, new)
    except VitkitError as error:
        return known, html.problem(printable(str(error)))
    return known, html.note(f"{counted(len(known), 'photograph')} corrected.")


FOLDER = "corrections"  # what the zip file unpacks to
MANIFEST = "corrections.csv"
MOST = 500  # photographs
MOST_BYTES = 500 * 2**20  # of all of them together: they are in memory
SUFFIXES = {"JPEG": ".jpg", "JPEG2000": ".jp2", "TIFF": ".tif"}

# Labels that people corrected, as a manifest with its images


def corrected(known: tuple[Correction, ...], new: Correction) -> tuple[Correction, ...]:
    """The corrections with another one, in the place of an earlier one of the same file.

    Raises VitkitError for a label that is empty or no line of text, and for more than there is room
    for.
    """
    label = new.label.strip()
    if not label:
        raise BadSettings("say what is on the photograph first")
    if printable(label) != label or "\n" in label or len(label) > LONGEST_NAME:
        raise BadSettings(f"a label is one line of text of at most {LONGEST_NAME} characters")
    if csv_cell(label) != label:
        raise BadSettings("a label does not begin as a formula of a spreadsheet does")
    digest = sha256(new.data).digest()
    others = [old for old in known if sha256(old.data).digest() != digest]
    total = sum(len(old.data) for old in others) + len(new.data)
    if len(others) >= MOST or total > MOST_BYTES:
        raise BadSettings(
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
            predicted = csv_cell(printable_name(correction.predicted))
            rows.writerow([image, correction.label.strip(), predicted])
        file.writestr(f"{FOLDER}/{MANIFEST}", table.getvalue())


def file_name(number: int, correction: Correction) -> str:
    """A unique name that every file system accepts: "0001-bee.jpg"."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(correction.name).stem).strip("_")[:60]
    suffix = SUFFIXES.get(correction.kind, f".{correction.kind.lower()}")
    return f"{number:04}-{stem or 'photograph'}{suffix}"
