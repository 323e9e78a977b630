"""Unusual images of a data set, and the page of a review, which also shows the labels that are probably wrong
(label_noise.py).

Legend: N images, D width of the features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitkit.data import Source, heading_of_list, picture_to_look_at
from vitkit.inspection import (
    Markup,
    Tile,
    bullets,
    folded,
    gallery,
    paragraph,
    section,
    table,
    write_page,
)
from vitkit.inspection.pages.html import Active, marking
from vitkit.system.console.text import as_word, printable_name

NEIGHBOURS = 10  # number of nearest images whose mean distance measures how unusual an image is
FAR = 4.0  # robust standard deviations above which a value is unusual
AT_ONCE = 1 << 26  # similarities that are computed in one batch
PICTURES = 60  # largest number of pictures of each kind of finding; the list has all
NO_PICTURE = np.full((100, 100, 3), 128, np.uint8)  # replaces an image that cannot be read
LIST = "reviewed.txt"  # file of the reader's decisions
CHOICES = 200  # largest number of classes that the page offers as corrections


def outliers(x: np.ndarray) -> list[tuple[int, float]]:
    """Outliers, the farthest first: features (N, D) -> indices, and for each the mean cosine distance to its
    NEIGHBOURS nearest images, in robust standard deviations from the median.
    """
    count = len(x)
    neighbours = min(NEIGHBOURS, count - 1)
    if neighbours < 1:
        return []
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    rows = (x / np.maximum(lengths, 1e-12)).astype(np.float32)
    distances = np.empty(count)
    block = max(1, AT_ONCE // count)
    for start in range(0, count, block):
        similarities = rows[start : start + block] @ rows.T  # (block, N)
        here = np.arange(len(similarities))
        similarities[here, start + here] = -np.inf  # itself
        nearest = np.partition(similarities, -neighbours, axis=1)[:, -neighbours:]
        distances[start : start + block] = 1 - nearest.mean(1)
    deviations = robust_deviations(distances)
    far = np.flatnonzero(deviations > FAR)
    order = far[np.argsort(-deviations[far], kind="stable")]
    return [(i, float(deviations[i])) for i in order.tolist()]


def robust_deviations(values: np.ndarray) -> np.ndarray:
    """The distance of each value from the median, (N,), in standard deviations estimated from the median
    absolute deviation, which outliers do not affect. Infinite for a value that differs from the median if
    at least half of the values are equal to it."""
    centred = values - np.median(values)
    spread = 1.4826 * np.median(np.abs(centred))
    if spread == 0:
        odd = np.where(centred > 0, np.inf, -np.inf)
        return np.where(centred == 0, 0.0, odd)
    return centred / spread


def unusual_looks(
    sizes: np.ndarray,
    thumbnails: np.ndarray,
    sharpness: np.ndarray,
    stretched: np.ndarray | None = None,
) -> dict[int, str]:
    """Images that look unusual in comparison with the others, by index, with a description: dark, pale,
    empty, blurred, of another size or shape. Among X-rays, for example, a dark image is not unusual.

    sizes: height and width, (N, 2).
    thumbnails: uint8 (N, 8, 8, 3).
    sharpness, stretched: as in `Survey`, (N,). The brightness of stretched images is not compared.
    """
    found: dict[int, list[str]] = {}

    def note(flagged: np.ndarray, text: str) -> None:
        for i in np.flatnonzero(flagged).tolist():
            found.setdefault(i, []).append(text)

    # Brightness and contrast
    has_light = np.ones(len(sizes), bool)
    if stretched is not None:
        has_light = ~stretched
    light = thumbnails.mean((1, 2, 3))
    deviation = robust_deviations(light)
    note(has_light & (light < 25) & (deviation < -FAR / 2), "dark")
    note(has_light & (light > 235) & (deviation > FAR / 2), "pale")
    contrast = thumbnails.std((1, 2, 3))
    empty = (contrast < 4) & (robust_deviations(contrast) < -FAR / 2)
    note(empty, "nearly empty")

    # Sharpness; an empty image is never sharp
    blurred = robust_deviations(np.log(sharpness + 1e-6)) < -FAR
    note(blurred & ~empty, "blurred")

    # Size and shape
    pixels = sizes.prod(1).astype(float)
    ratio = pixels / np.median(pixels)
    deviation = np.abs(robust_deviations(np.log(pixels)))
    note((ratio < 1 / 4) & (deviation > FAR), "small")
    note((ratio > 16) & (deviation > FAR), "large")
    shape = np.log(sizes[:, 1] / sizes[:, 0])
    strange = np.abs(shape - np.median(shape)) > np.log(2.5)
    note(strange & (np.abs(robust_deviations(shape)) > FAR), "of another shape")
    return {i: ", ".join(texts) for i, texts in sorted(found.items())}


# The page of a review


@dataclass(frozen=True)
class Finding:
    """An image that deserves a second look."""

    kind: str
    """Kind of the finding, a key of KINDS."""
    part: str
    """Part of the data set: "train", "val" or "test"."""
    index: int
    """Index of the image in that part."""
    name: str
    """Name of the image in that part."""
    label: str
    """Label of the image; empty if it has none."""
    reason: str
    """A description of what is unusual."""
    like: tuple[str, int] | None = None
    """For a duplicate, part and index of the image that it repeats; None for other kinds."""
    guess: str = ""
    """For a label that may be wrong, the class predicted from the other images; empty for other kinds."""


KINDS = {
    "label": "Labels that may be wrong",
    "duplicate": "The same picture again",
    "outlier": "Unlike all others",
    "looks": "Dark, blurred, or of an odd size",
    "unreadable": "Cannot be read",
}
MEANING = {
    "label": (
        "The labels that are most probably wrong, the surest first; their number is the expected number of "
        "wrong labels. Below each picture: its label, then the prediction from all other images. Reasons are "
        "a wrong label, two things in one picture, or a hard picture."
    ),
    "duplicate": (
        "Each beside the picture that it repeats. A picture in both the training and the test part "
        "makes the test too easy; if the two labels differ, one of them is wrong."
    ),
    "outlier": "Their features are far from those of every other image. Do they belong here?",
    "looks": "Compared with the other images of this data set.",
    "unreadable": "Training stops at them, unless --data.on-bad-image skip leaves them out.",
}


def write_review(
    path: Path, data: str, parts: dict[str, Source], findings: Sequence[Finding], facts: list[str]
) -> Path:
    """Write the page of a review atomically, and return its path. Its reader marks images, and saves a list
    that `without` and `read_corrections` read. Raises OSError."""
    counts = []
    sections = []
    for kind, heading in KINDS.items():
        chosen = [finding for finding in findings if finding.kind == kind]
        counts.append((heading, f"{len(chosen):,}"))
        if chosen:
            sections.append(_section(kind, parts, chosen, path.absolute().parent))
    blocks = [bullets(facts), table(counts, ("a second look", "images")), *sections]
    active = _marking(parts, findings, data)
    return write_page(path, f"A second look at {data}", blocks, active)


def _marking(parts: dict[str, Source], findings: Sequence[Finding], data: str) -> Active:
    """The part of the page with which a reader marks images."""
    images = {each.name: (each.part, each.label) for each in findings if _is_markable(each)}
    source = next(iter(parts.values()))  # the training part, if there is one
    classes = []
    if source.target_kind == "class" and len(source.labels) <= CHOICES:
        classes = [label for label in source.labels if label.isprintable()]
    ways = []
    if Path(data).is_dir() and any(Path(name).is_file() for name in images):
        ways.append(
            f"vitkit data review {as_word(data)} --apply {LIST} prints which files it would move, and "
            "with --yes moves them"
        )
    else:
        ways.append("the list names the rows of the table that need a correction")
    if "train" in parts:
        ways.append(f"--data.exclude {LIST} trains without those of the training part")
    following = "; or, without that, ".join(ways)
    return marking(heading_of_list(source), LIST, following, images, classes)


def _is_markable(finding: Finding) -> bool:
    """Whether the image's name can be written as a line of the list."""
    return finding.name.isprintable()


def _section(
    kind: str, parts: dict[str, Source], findings: Sequence[Finding], folder: Path
) -> Markup:
    """The section with the findings of a kind: pictures of the first ones, and a table of all. folder: the
    folder of the page, to which links to the images' files are relative."""
    tiles = [_tile(parts, finding) for finding in findings[:PICTURES]]
    rows = [(f.part, printable_name(f.name), printable_name(f.label), f.reason) for f in findings]
    listing = table(rows, ("part", "image", "label", "why"), wraps=True)
    return section(
        KINDS[kind],
        paragraph(MEANING[kind], "faint"),
        gallery(tiles, folder=folder),
        folded(f"All {len(rows):,} by name", listing),
    )


def _tile(parts: dict[str, Source], finding: Finding) -> Tile:
    """The picture of a finding with its label and the reason; a duplicate beside the image that it repeats."""
    if finding.kind == "unreadable":
        pixels = NO_PICTURE
    else:
        pixels = picture_to_look_at(parts[finding.part].picture(finding.index))
    if finding.like is not None:
        part, index = finding.like
        pixels = _side_by_side(pixels, picture_to_look_at(parts[part].picture(index)))
    caption = printable_name(finding.label)
    right = None
    if finding.kind == "label":
        right = False
    note = finding.reason
    if not _is_markable(finding):
        note += "; its name cannot be written to a list: rename the file to mark it"
    return Tile(pixels, caption, right, note, finding.name, _is_markable(finding))


def _side_by_side(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """One picture of two, each padded to a square of 160 pixels."""
    from PIL import Image, ImageOps

    squares = [ImageOps.pad(Image.fromarray(each), (160, 160)) for each in (left, right)]
    return np.concatenate([np.asarray(square) for square in squares], axis=1)
