"""A review of a data set as one page that needs no other file."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data import Source, open_image, picture_to_look_at
from vitkit.inspection import (
    Block,
    Tile,
    bullets,
    folded,
    gallery,
    paragraph,
    section,
    table,
    write_page,
)
from vitkit.system.console.text import printable_name

PICTURES = 60  # of each kind; the list has all


class Finding(NamedTuple):
    """An image that deserves a second look."""

    kind: str
    """Why: one of KINDS."""
    part: str
    """"train", "val" or "test"."""
    index: int
    """Its number in that part."""
    name: str
    """What the part calls it."""
    label: str
    """Its label; empty if it has none."""
    reason: str
    """What is unusual, in words."""
    like: tuple[str, int] | None = None
    """Of a duplicate: part and number of the image that it repeats."""


KINDS = {
    "label": "Labels that are probably wrong",
    "duplicate": "The same picture again",
    "outlier": "Unlike all others",
    "looks": "Dark, blurred, or of an odd size",
    "unreadable": "Cannot be read",
}
MEANING = {
    "label": (
        "What all the other images make of each, the surest first. Below each picture: its label, "
        "then the answer. A wrong label, two things in one picture, or a picture that is hard."
    ),
    "duplicate": (
        "Each beside the picture that it repeats. A picture in both the training and the test part "
        "makes the test too easy; one with two labels is wrong once."
    ),
    "outlier": "What the model sees in them is far from every other image. Do they belong here?",
    "looks": "Compared with the other images of this data set.",
    "unreadable": "Training stops at them, unless --data.on-bad-image skip leaves them out.",
}


def write_review(
    path: Path, title: str, parts: dict[str, Source], findings: Sequence[Finding], facts: list[str]
) -> Path:
    """Write the page, whole or not at all, and return its path. Raises OSError."""
    counts = []
    sections = []
    for kind, heading in KINDS.items():
        chosen = [finding for finding in findings if finding.kind == kind]
        counts.append((heading, f"{len(chosen):,}"))
        if chosen:
            sections.append(_section(kind, parts, chosen))
    blocks = [bullets(facts), table(counts, ("a second look", "images")), *sections]
    return write_page(path, title, blocks)


def _section(kind: str, parts: dict[str, Source], findings: Sequence[Finding]) -> Block:
    """The findings of a kind: pictures of the first ones, and a table of all."""
    blocks = [paragraph(MEANING[kind], "faint")]
    if kind != "unreadable":
        blocks.append(gallery(_tile(parts, finding) for finding in findings[:PICTURES]))
    rows = [(f.part, printable_name(f.name), printable_name(f.label), f.reason) for f in findings]
    listing = table(rows, ("part", "image", "label", "why"), wraps=True)
    if kind == "unreadable":
        blocks.append(listing)
    else:
        blocks.append(folded(f"All {len(rows):,} by name", listing))
    return section(KINDS[kind], *blocks)


def _tile(parts: dict[str, Source], finding: Finding) -> Tile:
    """A finding's picture with its label and the reason; a duplicate beside what it repeats."""
    pixels = _pixels(parts[finding.part], finding.index)
    if finding.like is not None:
        part, index = finding.like
        pixels = _side_by_side(pixels, _pixels(parts[part], index))
    caption = printable_name(finding.label)
    right = None
    if finding.kind == "label":
        right = False
    return Tile(pixels, caption, right, finding.reason)


def _pixels(source: Source, index: int) -> np.ndarray:
    """An image of the source, uint8 (h, w, 3)."""
    data, _ = source[index]
    return picture_to_look_at(open_image(data, source.name(index)))


def _side_by_side(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Two pictures on one, each in a square of 160 pixels."""
    from PIL import Image, ImageOps

    squares = [ImageOps.pad(Image.fromarray(each), (160, 160)) for each in (left, right)]
    return np.concatenate([np.asarray(square) for square in squares], axis=1)
