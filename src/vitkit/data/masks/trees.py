"""Trees of folders that hold images and, in folders of their own, the masks of these images:

    images/NAME.jpg and masks/NAME.png                          side by side
    train/images/NAME.jpg and train/masks/NAME.png              in each part
    JPEGImages/, SegmentationClass/, ImageSets/Segmentation/    Pascal VOC
    leftImg8bit/PART/CITY/ and gtFine/PART/CITY/                Cityscapes
    images/PART/ and annotations/PART/                          ADE20K

A mask is found by the path of its image without the folders that only say what is in them.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from vitkit.data.formats.folder import find_images, folder_table, is_hidden
from vitkit.data.formats.layout import BESIDE, CONTAINERS
from vitkit.data.masks.published import (
    LABEL_IDS,
    LARGEST,
    TRAIN_IDS,
    Known,
    known_classes,
)
from vitkit.data.sources.stores import Files, Names
from vitkit.data.sources.tables import Columns, Table
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData

OF_IMAGES = CONTAINERS | {
    "leftimg8bit"
}  # folders, in small letters, that only say that they hold images
ENDING = "_leftImg8bit"  # of Cityscapes' images
LISTS = ("ImageSets", "Segmentation")  # the folder of Pascal VOC's lists of images
# The lists of a part; of several the first that there is. "train_aug" is that of the Semantic Boundaries Dataset
OF_PART = {"train": ("train_aug", "train"), "val": ("val",), "test": ("test",)}
DEEPEST = 3  # levels at which folders of masks are looked for


def key_of(name: str) -> PurePosixPath:
    """The path of an image or a mask below its folder without the folders that only say what is in them, by which
    the mask of an image is found: PART/NAME of PART/images/NAME."""
    path = PurePosixPath(name)
    folders = [part for part in path.parts[:-1] if part.casefold() not in OF_IMAGES]
    stem = path.stem.removesuffix(ENDING)
    return PurePosixPath(*folders, stem + path.suffix)


@dataclass(frozen=True)
class Tree:
    """Folders of masks, and where the images are that they belong to."""

    root: Path
    """The folder of the images, or of images and masks."""
    folders: tuple[Path, ...]
    """The folders of masks."""
    inside: tuple[str, ...]
    """Those of them below `root`, from there, with "/"; all of them or none are."""

    @property
    def top(self) -> Path:
        """The folder that holds those of images and of masks."""
        if len(self.folders) > 1:
            return self.root
        return self.folders[0].parent

    def masks(self) -> tuple[Files, Names]:
        """The masks, and for each its key (`key_of`). Raises BadData if there are none."""
        if len(self.folders) == 1:
            names, _ = find_images(self.folders[0])
            base = self.folders[0]
            keys = names
        else:
            names = []
            keys = []
            base = self.root
            for folder, inside in zip(self.folders, self.inside, strict=True):
                found, _ = find_images(folder)
                names += [f"{inside}/{name}" for name in found]
                above = PurePosixPath(inside).parent  # train/masks/a.png is found as train/a.png
                keys += [str(above / name) for name in found]
        if not names:
            raise BadData(f"{self.title} holds no masks; expected image files such as .png")
        kept = _of_classes(names)
        files = Files.of(base, [names[i] for i in kept])
        return files, Names.of([str(key_of(keys[i])) for i in kept])

    @property
    def title(self) -> str:
        """What errors call the masks."""
        if len(self.folders) == 1:
            return str(self.folders[0])
        return f"the folders {self.folders[0].name} of {self.root}"

    def known(self, names: Sequence[str]) -> Known | None:
        """What is known of the classes of these masks without a legend."""
        return known_classes(self.top, self.folders[0], names)

    def table(self, columns: Columns) -> Table | None:
        """The images; None if they are those of the folder as it is. Raises BadData if there are none."""
        lists = self._lists()
        if not self.inside and lists is None:
            return None
        names, left_out = find_images(self.root)
        images = [name for name in names if not self._is_annotation(name)]
        if not images:
            raise BadData(f"{self.root} holds masks in {self.title}, and no images")
        if lists is None:
            return folder_table(self.root, images, left_out, columns)
        return self._listed_table(images, left_out, lists)

    def _is_annotation(self, name: str) -> bool:
        """Whether an image file belongs to the annotations of others."""
        if not self.inside:
            return False
        if any(name.startswith(f"{folder}/") for folder in self.inside):
            return True
        return any(part.casefold() in BESIDE for part in PurePosixPath(name).parts[:-1])

    def _lists(self) -> dict[str, list[str]] | None:
        """The names of the images of each part in Pascal VOC's lists; None without lists."""
        top = self.top
        if self.root not in (top, top / "JPEGImages") or not (top / "JPEGImages").is_dir():
            return None
        folder = top.joinpath(*LISTS)
        found = {}
        for part, candidates in OF_PART.items():
            for name in candidates:
                is_for_other_masks = name == "train_aug" and not self.folders[0].name.endswith(
                    "Aug"
                )
                if (folder / f"{name}.txt").is_file() and not is_for_other_masks:
                    found[part] = _names_in(folder / f"{name}.txt")
                    break
        both = folder / "trainval.txt"
        if "train" not in found and both.is_file():
            of_both = _names_in(both)
            if not found:
                return {"": of_both}
            of_val = set(found.get("val", ()))
            found = {"train": [name for name in of_both if name not in of_val], **found}
        return found or None

    def _listed_table(
        self, images: Sequence[str], left_out: Counter, lists: dict[str, list[str]]
    ) -> Table:
        """The images that the lists name, by part. Raises BadData if there are none, or one is in two parts."""
        stems = [PurePosixPath(name).stem for name in images]
        known = set(stems)
        part_of: dict[str, str] = {}
        for part, listed in lists.items():
            for line in listed:
                stem = line
                if line not in known:  # with a second column, as in other lists of Pascal VOC
                    stem = line.split()[0]
                if part_of.setdefault(stem, part) != part:
                    raise BadData(
                        f"the lists in {self.top.joinpath(*LISTS)} have {stem!r} in {part_of[stem]} and in {part}; "
                        "remove it from one of them"
                    )
        chosen = [i for i, stem in enumerate(stems) if stem in part_of]
        if not chosen:
            example = next(iter(part_of), "")
            raise BadData(
                f"no image below {self.root} has a name of the lists in {self.top.joinpath(*LISTS)}, such as {example!r}"
            )
        parts = np.array([part_of[stems[i]] for i in chosen], dtype=object)
        shares = []
        for part in lists:
            shares.append(f"{(parts == part).sum():,} {part}".strip())
        note = f"the lists in {self.top.joinpath(*LISTS)} name {counted(len(chosen), 'image')}: {', '.join(shares)}"
        missing = sorted(part_of.keys() - known)
        if missing:
            note += f"; without {counted(len(missing), 'image')} that they name: {some(missing, 3)}"
        files = Files.of(self.root, [images[i] for i in chosen])
        return Table(files, None, parts, None, (note,))


def find_tree(where: str, masks: str) -> Tree | None:
    """The folders that `masks` names: the path of a folder; or a folder in DATA, in each of its parts, or beside
    it. None if there are none, or DATA is no folder."""
    root = Path(where)
    if not root.is_dir() or has_columns(where):
        return None
    folders = _folders(root, masks)
    if not folders:
        return None
    inside = []
    for folder in folders:
        if _is_below(folder, root):
            inside.append(_relative(folder, root))
    if inside:  # spelled from the root, as the images are
        folders = [root / name for name in inside]
    return Tree(root, tuple(folders), tuple(inside))


def has_columns(folder: str) -> bool:
    """Whether a folder holds tables rather than images: parquet files, or what `datasets` saved."""
    names = [path.name for path in Path(folder).iterdir()]
    ends = (".parquet", ".arrow", "dataset_dict.json", "state.json")
    return any(name.endswith(ends) for name in names)


def _folders(root: Path, masks: str) -> list[Path]:
    """The folders that `masks` may name. Raises BadData if these are one in the working directory and others in
    DATA."""
    candidates = [Path(masks), root / masks, root.parent / masks]
    if Path(masks).is_absolute() or ".." in Path(masks).parts:
        candidates = [Path(masks)]
    for candidate in candidates:
        if candidate.is_dir() and not _is_same(candidate, root):
            others = [] if candidate.is_absolute() else _inside(root, masks)
            others = [other for other in others if not _is_same(candidate, other)]
            if candidate == Path(masks) and others:
                raise BadData(
                    f"`masks={masks!r}` may be {candidate.absolute()} or {others[0]}: give the whole path"
                )
            return [candidate]
    return _inside(root, masks)


def _inside(root: Path, masks: str) -> list[Path]:
    """The folders of this name below DATA: DATA/masks, or else one in each part."""
    if (root / masks).is_dir():
        return [root / masks]
    if len(Path(masks).parts) != 1 or Path(masks).is_absolute():
        return []
    found = []
    for folder, inner, _ in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        inner[:] = sorted(name for name in inner if not is_hidden(name))
        if masks in inner:
            found.append(Path(folder, masks))
            inner.remove(masks)
        if depth + 1 >= DEEPEST:
            inner.clear()
    return found


def _is_same(one: Path, other: Path) -> bool:
    return os.path.abspath(one) == os.path.abspath(other)  # noqa: PTH100 a lexical path


def _is_below(folder: Path, root: Path) -> bool:
    """Whether a folder lies below another by their paths; links may lead anywhere."""
    return os.path.abspath(folder).startswith(os.path.abspath(root) + os.sep)  # noqa: PTH100


def _relative(folder: Path, root: Path) -> str:
    return Path(os.path.relpath(folder, root)).as_posix()


def _of_classes(names: Sequence[str]) -> list[int]:
    """Which files are masks of classes: all, but of Cityscapes those of ids, not of instances and colours."""
    for ending in (LABEL_IDS, TRAIN_IDS):
        of_ids = [i for i, name in enumerate(names) if PurePosixPath(name).stem.endswith(ending)]
        if of_ids:
            return of_ids
    return list(range(len(names)))


def _names_in(path: Path) -> list[str]:
    """The lines of a list, without quotation marks around them. Raises BadData for a file that is none."""
    try:
        with path.open("rb") as file:
            data = file.read(64 * LARGEST + 1)
        if len(data) > 64 * LARGEST:
            raise BadData(
                f"{path} has more than {64 * LARGEST:,} bytes, so it is no list of images"
            )
        lines = data.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read: {error}") from None
    names = [line.strip().strip('"').strip() for line in lines]
    return [name for name in names if name]
