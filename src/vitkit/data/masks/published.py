"""The classes of published data sets whose masks come without a legend: Pascal VOC, Cityscapes and ADE20K, and of
folders of their kind that other programs write."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vitkit.data.masks.legend import (
    IGNORED,
    Codes,
    Legend,
    legend_of_names,
    read_legend,
    with_ignored,
)
from vitkit.system.errors import BadData

VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
VOC_NAME = re.compile(r"(\d{4}_)?\d{6}")  # of an image of Pascal VOC: 2007_000032, or 000032
# The classes that Cityscapes evaluates, and the ids that its masks have for them; other ids do not count
CITYSCAPES = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26,
    "truck": 27, "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
CITYSCAPES_IDS = 34
LABEL_IDS = "_labelIds"
TRAIN_IDS = "_labelTrainIds"
ADE_NAME = re.compile(r"ADE_(train|val)_\d+")
ADE_NAMES = "objectInfo150.txt"
LARGEST = 1 << 20  # bytes of a file that names classes
LABEL_MAP = "labelmap.txt"  # beside the folders of Pascal VOC, as CVAT writes it
CLASS_NAMES = "class_names.txt"  # as labelme's converter writes it


class Known(NamedTuple):
    """What is known of the masks of a data set without a legend of the user's."""

    title: str
    """What the data set is called."""
    legend: Legend | None
    """The classes; None if they follow from the masks."""
    ignore: int | None = None
    """A value whose pixels do not count."""
    says: str = ""
    """A sentence for the user."""
    hides_test: bool = False
    """Whether the published masks of the test part may have no class."""


def known_classes(top: Path, folder: Path, names: Sequence[str]) -> Known | None:
    """What is known of the masks of a data set; None for one that is not known.

    Args:
        top: The folder in which the folders of images and masks lie.
        folder: A folder of masks.
        names: The names of the masks below it.

    Raises BadData for a file of class names that is malformed.
    """
    stems = [PurePosixPath(name).stem for name in names[:1]]
    if (top / "JPEGImages").is_dir() and folder.name.startswith("SegmentationClass"):
        return _voc(top, stems)
    if stems and stems[0].endswith((LABEL_IDS, TRAIN_IDS)) and folder.name.startswith("gt"):
        return _cityscapes(stems[0])
    if stems and (ADE_NAME.fullmatch(stems[0]) or (top / ADE_NAMES).is_file()):
        return _ade(top)
    return None


def _voc(top: Path, stems: Sequence[str]) -> Known | None:
    """Pascal VOC, or what CVAT and labelme write in its folders."""
    if (top / LABEL_MAP).is_file():
        legend = read_legend(top / LABEL_MAP)
        return Known("Pascal VOC", legend, says=f"the classes are those of {top / LABEL_MAP}")
    if (top / CLASS_NAMES).is_file():
        names = [line.strip() for line in _text(top / CLASS_NAMES).splitlines() if line.strip()]
        if names and names[0] == "__ignore__":  # -1, which is 255 in a mask
            names = names[1:]
        names = [name.replace("_background_", "background") for name in names]
        legend = with_ignored(legend_of_names(names, str(top / CLASS_NAMES)), None)
        return Known("Pascal VOC", legend, says=f"the classes are those of {top / CLASS_NAMES}")
    if not all(map(VOC_NAME.fullmatch, stems)):
        return None
    says = (
        f"the masks are Pascal VOC's: a background and {len(VOC) - 1} classes, and pixels of 255 are ignored; "
        "`legend` names others"
    )
    return Known("Pascal VOC", legend_of_names(VOC, "of Pascal VOC"), says=says)


def _cityscapes(stem: str) -> Known:
    """Cityscapes, whose masks have the ids of all classes or the numbers of those that it evaluates."""
    if stem.endswith(TRAIN_IDS):
        legend = legend_of_names(list(CITYSCAPES), "of Cityscapes")
    else:
        numbers = dict.fromkeys(range(CITYSCAPES_IDS), IGNORED)
        numbers |= {code: number for number, code in enumerate(CITYSCAPES.values())}
        codes = tuple(Codes(code, code, number) for code, number in numbers.items())
        legend = with_ignored(Legend(tuple(CITYSCAPES), codes), None)
    says = (
        f"the masks are Cityscapes': the {len(CITYSCAPES)} classes that it evaluates, and other pixels are "
        "ignored; `legend` names others"
    )
    return Known("Cityscapes", legend, says=says, hides_test=True)


def _ade(top: Path) -> Known:
    """ADE20K's 150 classes, of which 0 is none."""
    ignored = "pixels of 0 have no class, and are ignored"
    path = top / ADE_NAMES
    if not path.is_file():
        return Known(
            "ADE20K", None, 0, f"the masks are ADE20K's: {ignored}; `legend` names the classes"
        )
    codes = [Codes(0, 0, IGNORED)]
    labels: list[str] = []
    for number, line in enumerate(_text(path).splitlines()[1:], 2):
        fields = line.split("\t")
        if not fields[0].strip():
            continue
        if len(fields) < 5 or not fields[0].strip().isdecimal() or not 0 < int(fields[0]) < 255:
            raise BadData(
                f"{path} line {number} is {line[:100]!r}; expected a number from 1 to 254, three columns, and a name"
            )
        value = int(fields[0])
        name = fields[4].partition(",")[0].strip()  # of its synonyms the first
        if name in labels:  # a synonym of two classes
            name = f"{name} ({value})"
        codes.append(Codes(value, value, len(labels)))
        labels.append(name)
    if not labels or len({code.low for code in codes}) < len(codes):
        raise BadData(f"{path} names no class, or has a number twice")
    legend = with_ignored(Legend(tuple(labels), tuple(codes)), None)
    return Known("ADE20K", legend, 0, f"the classes are those of {path}, and {ignored}")


def _text(path: Path) -> str:
    """The text of a small file. Raises BadData."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise BadData(f"{path} has more than {LARGEST:,} bytes, so it does not name classes")
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read: {error}") from None
