"""Images with masks: a source of images, and for each of them the mask of the same name in another folder, or
in another column of the same table.

Legend: N images, h w pixels.
"""

import os
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from vitkit.data.formats import read_table
from vitkit.data.formats.folder import find_images
from vitkit.data.images.pictures import Picture
from vitkit.data.masks.coco import read_coco
from vitkit.data.masks.legend import (
    IGNORED,
    MAX_CLASSES,
    Legend,
    inferred,
    legend_of_names,
    read_legend,
    with_ignored,
)
from vitkit.data.masks.reading import codes_of, is_coloured
from vitkit.data.masks.targets import Masks
from vitkit.data.masks.trees import find_tree, has_columns, key_of
from vitkit.data.sources.source import Source, subset
from vitkit.data.sources.splits import (
    Parts,
    Splits,
    grouped_columns,
    parts_at,
    parts_of_table,
    splits_of,
)
from vitkit.data.sources.stores import Files, Names, Store
from vitkit.data.sources.tables import Columns
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData, BadImage
from vitkit.system.storage.files import parse_json

# What follows the image's name in the names of masks; "_L" is CamVid's, "_labelIds" Cityscapes'
ENDINGS = (
    "", "_mask", "-mask", "_Mask", "_masks", "_label", "_labels", "_L", "_seg", "_gt", "_labelIds",
    "_gtFine_labelIds", "_gtCoarse_labelIds", "_gtFine_labelTrainIds", "_gtCoarse_labelTrainIds",
)  # fmt: skip
CLASSES = b"classes"  # in the metadata of a parquet file: the names of the classes of its masks


FIRST = 8  # masks of a part that are looked at


class NoMasks(BadData):
    """None of the images of a part has a mask."""


@dataclass(frozen=True, eq=False)
class Masked:
    """Images with a mask each. Travels to worker processes."""

    images: Source
    """The N images."""
    store: Store
    """Where the masks are."""
    rows: np.ndarray
    """Which row of the store the mask of each image is: int64 (N,)."""
    legend: Legend
    """What the values of masks stand for."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.legend.labels

    @property
    def masks(self) -> Masks:
        """The masks alone."""
        return Masks(self.store, self.rows, self.legend)

    def mask(self, i: int) -> np.ndarray:
        """The class number of every pixel of image i, uint8 (h, w), IGNORED where pixels do not count.
        Raises BadImage if it cannot be read, and BadData for a value that is no class."""
        return self.masks.mask(i)

    def pair(self, i: int) -> tuple[Picture, np.ndarray]:
        """Image i, opened, and its mask, uint8 (h, w), of the same size. Raises BadImage as both do, and
        BadData for sizes that differ."""
        picture = self.images.picture(i)
        return picture, self.masks.read(i, picture.size, picture.name)

    def mask_name(self, i: int) -> str:
        """The name by which a user knows the mask of image i."""
        return self.masks.name(i)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Masked":
        """The images at these indices, in this order."""
        indices = np.asarray(indices, dtype=np.int64)
        return replace(self, images=subset(self.images, indices), rows=self.rows[indices])


@dataclass(frozen=True, eq=False)
class MaskStore:
    """The masks of a data set, before it is known which belongs to which image."""

    store: Store
    title: str
    """What errors call it."""
    names: Names | None = None
    """The names of the masks, by which those of images are found; None if they are in the rows of the images."""
    legend: Legend | None = None
    """What their values stand for, if the masks come with it."""
    keys: Names | None = None
    """The keys of the masks of a tree of folders (trees.py); None for other masks."""
    ignore: int | None = None
    """A value whose pixels do not count, if it is known of the data set."""
    says: str = ""
    """What is known of the classes, for the user who gives no legend."""
    hides_test: bool = False
    """Whether masks of the test part may have no class."""

    def paired(
        self, images: Source, every: Sequence[Source], problems: list[str] | None = None
    ) -> tuple[Source, np.ndarray, tuple[str, ...]]:
        """The images that have a mask, the rows of their masks, int64 (N,), and notes for the user.

        Args:
            images: A part of the data set.
            every: All parts of it.
            problems: Gets a sentence for each image without a mask, or of which it is not known which mask is
                its own. Without it, these images are only counted, and masks that are not known are an error.

        Raises BadData if no image has a mask.
        """
        if self.names is None:
            return images, images.rows, ()
        return _by_name(images, self, every, problems)


def open_masks(where: str, masks: str) -> MaskStore:
    """The masks that `masks` names: a folder, a COCO file (.json), or a column of the data set `where`. Raises
    BadData if there is none of these."""
    tree = find_tree(where, masks)
    if tree is not None:
        files, keys = tree.masks()
        known = tree.known([files.names[0]])
        found = MaskStore(files, tree.title, files.names, keys=keys)
        if known is None:
            return found
        return replace(
            found,
            legend=known.legend,
            ignore=known.ignore,
            says=known.says,
            hides_test=known.hides_test,
        )
    if Path(masks).is_dir():
        names, _ = find_images(masks)
        if not names:
            raise BadData(f"{masks} holds no masks; expected image files such as .png")
        files = Files.of(masks, names)
        return MaskStore(files, masks, files.names)
    if masks.lower().endswith(".json"):
        drawn, legend = read_coco(masks)
        return MaskStore(drawn, masks, drawn.names, legend)
    if Path(where).is_dir() and not has_columns(where):
        raise BadData(
            f"there is no folder {masks!r} with masks, here, in {where} or in its parts; {where} is a folder of "
            "images, so `masks` is the folder of their masks, each with the name of its image"
        )
    try:
        table = read_table(where, Columns(image=masks, target="none"))
    except BadData as error:
        reason = str(error).removesuffix("; correct `data.columns.image`")
        raise BadData(
            f"{masks!r} is neither a folder of masks nor a column of {where}: {reason}"
        ) from None
    return MaskStore(table.store, f"the column {masks!r}")


def _by_name(
    images: Source, masks_of: MaskStore, every: Sequence[Source], problems: list[str] | None
) -> tuple[Source, np.ndarray, tuple[str, ...]]:
    """The images with a mask of the same name, and the rows of these masks; see `MaskStore.paired`."""
    title = masks_of.title
    masks = masks_of.names
    assert masks is not None  # or the masks are in the rows of the images
    own = os.path.abspath(title)  # noqa: PTH100 a lexical path, as links may lead anywhere
    if isinstance(images.store, Files) and os.path.abspath(images.store.root) == own:  # noqa: PTH100
        raise BadData(
            f"images and masks are both in {title}, so it is not known which is which: move the masks into a "
            "folder of their own"
        )
    match = _Match.of(masks_of, every)
    kept: list[int] = []
    rows: list[int] = []
    without: list[str] = []
    image_of: dict[int, str] = {}
    for i in range(len(images)):
        name = images.name(i)
        if _is_mask(images, i, title):
            continue
        try:
            found = match.row(_name_of(images, i))
            if found is not None and image_of.setdefault(found, name) != name:
                raise BadData(
                    f"{masks[found]} in {title} would be the mask of {image_of[found]} and of {name}: give each "
                    "image a mask of its own, in the same folders as the images"
                )
        except BadData as error:
            if problems is None:
                raise
            problems.append(str(error))
            continue
        if found is None:
            without.append(name)
            continue
        kept.append(i)
        rows.append(found)
    if not kept:
        example = without[0] if without else str(images.name(0))
        raise NoMasks(
            f"no image has a mask in {title}: for {example} there is no {Path(example).stem}.png, and there is "
            f"{masks[0]}; a mask has the name of its image"
        )
    notes: tuple[str, ...] = ()
    if problems is not None:
        problems += [f"{name} has no mask in {title}" for name in without]
    elif without:
        notes = (
            f"left out: {counted(len(without), 'image')} without a mask in {title}, such as {without[0]}",
        )
    return subset(images, kept), np.array(rows, dtype=np.int64), notes


def _is_mask(images: Source, i: int, title: str) -> bool:
    """Whether image i is a mask, in a folder of masks below that of the images."""
    if not isinstance(images.store, Files):
        return False
    own = os.path.abspath(title)  # noqa: PTH100
    return os.path.abspath(images.name(i)).startswith(own + os.sep)  # noqa: PTH100


def _name_of(images: Source, i: int) -> PurePosixPath:
    """The name of image i, below the folder of images if there is one."""
    if isinstance(images.store, Files):
        return PurePosixPath(images.store.names[int(images.rows[i])])
    return PurePosixPath(images.name(i))


def _bare(name: PurePosixPath) -> str:
    return str(name.with_suffix(""))


@dataclass(frozen=True)
class _Match:
    """The masks by their names."""

    masks: Names
    title: str
    by_path: dict[str, list[int]]
    """The rows of the masks of a path without suffix."""
    by_key: dict[str, list[int]]
    """The rows of the masks of a key without suffix; empty unless the masks are of a tree (trees.py)."""
    by_stem: dict[str, list[int]]
    """The rows of the masks of a name without folders and suffix."""
    images: frozenset[str]
    """The paths of all images, without suffix."""
    keys: frozenset[str]
    """The keys of all images, without suffix."""
    stems: Counter
    """How many images of different paths have a name without folders and suffix."""
    has_folders: bool
    """Whether a mask lies in a folder."""
    jpeg: frozenset[int]
    """The rows of the masks that are JPEG files."""

    @classmethod
    def of(cls, masks_of: MaskStore, every: Sequence[Source]) -> "_Match":
        """every: all images of the data set."""
        masks = masks_of.names
        assert masks is not None  # as of `_by_name`
        by_path: dict[str, list[int]] = {}
        by_key: dict[str, list[int]] = {}
        by_stem: dict[str, list[int]] = {}
        jpeg: set[int] = set()
        has_folders = False
        drawn = not isinstance(masks_of.store, Files)
        for row in range(len(masks)):
            path = PurePosixPath(masks[row])
            key = path
            if masks_of.keys is not None:
                key = PurePosixPath(masks_of.keys[row])
                by_key.setdefault(_bare(key), []).append(row)
            by_path.setdefault(_bare(path), []).append(row)
            by_stem.setdefault(path.stem, []).append(row)
            has_folders |= len(key.parts) > 1
            if not drawn and path.suffix.lower() in (".jpg", ".jpeg"):
                jpeg.add(row)
        images = {
            _name_of(part, i)
            for part in every
            for i in range(len(part))
            if not _is_mask(part, i, masks_of.title)
        }
        return cls(
            masks,
            masks_of.title,
            by_path,
            by_key,
            by_stem,
            frozenset(map(_bare, images)),
            frozenset(_bare(key_of(str(each))) for each in images),
            Counter(each.stem for each in images),
            has_folders,
            frozenset(jpeg),
        )

    def row(self, image: PurePosixPath) -> int | None:
        """The row of an image's mask: that of the same path without the suffix, or of the same key, or of the same
        name if no other image has that. None without one. Raises BadData if it is not known which mask it is."""
        rows = self._named(_bare(image), self.by_path, self.images)
        if not rows and self.by_key:
            rows = self._named(_bare(key_of(str(image))), self.by_key, self.keys)
        if not rows and (self.stems[image.stem] == 1 or not self.has_folders):
            rows = self._named(image.stem, self.by_stem, self.stems)
        if len(rows) > 1:  # a photograph may lie beside its mask
            rows = [row for row in rows if row not in self.jpeg] or rows
        if len(rows) > 1:
            named = some([self.masks[row] for row in rows], 3)
            raise BadData(
                f"{len(rows)} masks in {self.title} have the name of the image {image} ({named}), so it is not "
                "known which one is its mask: leave one of them, in the folders of its image"
            )
        if not rows:
            return None
        if rows[0] in self.jpeg:
            raise BadData(
                f"the mask {self.masks[rows[0]]} in {self.title} is a JPEG file, which changes the values of "
                "pixels: make the masks again as PNG"
            )
        return rows[0]

    def _named(self, name: str, rows: dict[str, list[int]], images: Container[str]) -> list[int]:
        """The rows of the masks of this name with any of the endings that names of masks have, but not those of
        another image."""
        found = list(rows.get(name, []))
        for ending in ENDINGS:
            if ending and f"{name}{ending}" not in images:
                found += rows.get(f"{name}{ending}", [])
        return found


# The legend of a data set's masks


def find_legend(
    masks: MaskStore,
    rows: np.ndarray,
    where: str,
    path: Path | None,
    ignore: int | None,
    skip_unreadable: bool = False,
) -> tuple[Legend, tuple[str, ...]]:
    """The legend of masks, and what was assumed, in sentences: the file's, that of a COCO file, the names of classes in the
    metadata of parquet files, or what follows from the values of the masks themselves, which are then read.

    Args:
        masks: The masks.
        rows: Which of them are there, int64 (N,).
        where: The data set.
        path: The file of the legend.
        ignore: A value whose pixels do not count.
        skip_unreadable: Whether masks that cannot be read are passed over.

    Raises BadData if no legend follows, and BadImage for a mask that cannot be read.
    """
    if path is not None:
        return read_legend(path, ignore), ()
    if masks.legend is not None:
        return with_ignored(masks.legend, ignore), tuple(filter(None, [masks.says]))
    said: tuple[str, ...] = ()
    if ignore is None and masks.ignore is not None:
        ignore = masks.ignore
        said = (masks.says,)
    names = names_in_metadata(masks.store)
    if names is not None:
        return legend_of_names(names, f"in the metadata of {where}", ignore), ()
    found = _pixels_of_codes(masks.store, rows, False, skip_unreadable)
    coloured = found is None
    if found is None:
        found = _pixels_of_codes(masks.store, rows, True, skip_unreadable)
    assert found is not None  # any mask has colours
    legend, sentence = inferred(found, coloured, ignore)
    return legend, (*said, sentence)


def _pixels_of_codes(
    store: Store, rows: np.ndarray, coloured: bool, skip_unreadable: bool
) -> Counter | None:
    """How many pixels of these masks have each code; None if they are read as values, and one has colours."""
    found: Counter = Counter()
    for row in bar("reading masks")(rows.tolist(), len(rows)):
        try:
            codes = codes_of(store.read(row), store.name(row), coloured)
        except BadImage:
            if not coloured and _has_colours(store, row):
                return None
            if skip_unreadable:
                continue
            raise
        values, counts = np.unique(codes, return_counts=True)
        found.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(found) > MAX_CLASSES + 2:  # with two that are ignored: no legend follows
            break
    return found


def _has_colours(store: Store, row: int) -> bool:
    """Whether a mask can be read, and has colours rather than values."""
    try:
        return is_coloured(store.read(row), store.name(row))
    except BadImage:
        return False


def names_in_metadata(store: Store) -> list[str] | None:
    """The names of classes in the metadata of a store's parquet files; None if they have none."""
    files = getattr(store, "files", ())
    if not files or not all(str(file).endswith(".parquet") for file in files):
        return None
    from vitkit.system.storage import remote

    with remote.parquet_file(files[0]) as opened:
        metadata = opened.schema_arrow.metadata or {}
    if CLASSES not in metadata:
        return None
    try:
        names = parse_json(metadata[CLASSES])
    except ValueError:
        return None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return names
    return None


def masked(
    parts: dict[str, Source],
    where: str,
    masks: str,
    legend: Path | Legend | None = None,
    ignore: int | None = None,
) -> tuple[dict[str, Masked], tuple[str, ...]]:
    """The parts of a data set with their masks, and notes for the user.

    Args:
        parts: The images of each part.
        where: The name of the data set.
        masks: A folder of masks, a COCO file, or the column that holds them.
        legend: A file (`read_legend`), or a legend; None: it is found (`find_legend`).
        ignore: A value whose pixels do not count.

    Raises BadData if there are no masks, or no legend follows from them.
    """
    store = open_masks(where, masks)
    found = {}
    notes: tuple[str, ...] = ()
    for name, part in parts.items():
        try:
            images, rows, sentences = store.paired(part, list(parts.values()))
        except NoMasks as error:
            if name != "test" or len(parts) == 1:
                raise
            notes += (f"left out: the test part, as {error}",)  # many publish none
            continue
        found[name] = (images, rows)
        notes += sentences
    if isinstance(legend, Legend):
        resolved = legend if ignore is None else with_ignored(legend, ignore)
    else:
        every = np.concatenate([rows for _, rows in found.values()])
        resolved, sentences = find_legend(store, every, where, legend, ignore)
        notes += sentences
    with_masks = {
        name: Masked(images, store.store, rows, resolved) for name, (images, rows) in found.items()
    }
    if store.hides_test and len(with_masks) > 1 and _has_no_class(with_masks.get("test")):
        del with_masks["test"]
        notes += ("left out: the test part, whose published masks have no class",)
    return with_masks, notes


def _has_no_class(part: Masked | None) -> bool:
    """Whether the first masks of a part ignore every pixel."""
    if part is None:
        return False
    return all((part.mask(i) == IGNORED).all() for i in range(min(len(part), FIRST)))


def splits_with_masks(
    where: str,
    masks: str,
    columns: Columns | None = None,
    seed: int = 0,
    groups: str = "auto",
    always_grouped: bool = False,
) -> Splits:
    """Open a data set that has masks with its parts, without their masks: see `open_splits`. In a folder that holds
    images and masks, only images are read, and the parts are those of Pascal VOC's lists if it has them.

    masks: see `open_masks`. A person typed both names.
    """
    parts = parts_with_masks(where, masks, grouped_columns(columns or Columns(), groups))
    return splits_of(parts, where, seed, groups, always_grouped)


def parts_with_masks(where: str, masks: str, columns: Columns) -> Parts:
    """The parts that a data set of `splits_with_masks` has by itself."""
    columns = replace(columns, target="none", label=None)
    tree = find_tree(where, masks)
    if tree is not None:
        table = tree.table(columns)
        if table is not None:
            return parts_of_table(table)
    return parts_at(where, columns, typed=True)


def resized_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A mask, uint8 (h, w), at another (height, width), by the nearest pixel."""
    from vitkit.data.images.resizing import resize_as_pillow

    return resize_as_pillow(mask[..., None], size, "nearest")[0]
