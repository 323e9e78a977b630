"""Where images are defective, as people have it: a folder of masks, a COCO file, or a column with masks or boxes.

Legend: N images, R regions, (h, w) pixels of an image, (H, W) pixels that are compared.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from vitkit.data import IMAGE_SUFFIXES, Files, Preprocessing, Source, find_images, open_masks
from vitkit.data import regions as regions_of_classes
from vitkit.data.formats.layout import BESIDE
from vitkit.data.masks.coco import region_of
from vitkit.data.masks.pairs import ENDINGS as MASK_ENDINGS
from vitkit.data.masks.reading import check_size, codes_of
from vitkit.data.masks.regions import Region
from vitkit.data.sources.tables import PARTS
from vitkit.evaluation.metrics.defects import GOOD
from vitkit.evaluation.metrics.overlap import FINEST, ImageRegions, Regions
from vitkit.inspection import has_anomaly_map
from vitkit.runtimes.pytorch import file_with_map
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.storage import remote
from vitkit.system.storage.files import parse_json
from vitkit.weights import Classifier

JPEG = (".jpg", ".jpeg")

Read = Callable[[int, tuple[int, int]], Iterable[Region] | None]
"""The regions of image i of (height, width), one after another, so that large ones need not fit into memory
together; None if nothing is known of it."""


def ground_truth_of(data: str) -> str:
    """The folder of masks that comes with a folder of images, in it or beside its part, as in MVTec's data sets;
    "" if there is none."""
    folder = Path(data)
    if not folder.is_dir():
        return ""
    places = [folder]
    if folder.resolve().name.lower() in PARTS:
        places.append(folder.resolve().parent)
    for place in places:
        for found in sorted(place.iterdir()):
            name = found.name.casefold()
            if name in BESIDE and name.startswith("ground") and found.is_dir():
                return str(found)
    return ""


def regions_for(
    classifier: Classifier, source: Source, data: str, masks: str
) -> tuple[Regions | None, tuple[str, ...]]:
    """The defective regions of images to measure a model of good images on, by `masks` or by the folder of masks
    that comes with the images; None without either. And notes for the user. Raises as `find_regions`."""
    where = masks or ground_truth_of(data)
    if not where:
        return None, ()
    if not has_anomaly_map(classifier) and file_with_map(classifier) is None:
        sentence = (
            "the exported file does not say where an image is unlike good ones, so its map is not measured: give the "
            "model that it was made of, or export it again"
        )
        if masks:
            raise BadSettings(sentence)
        return None, (sentence,)
    found, notes = find_regions(source, data, where, classifier.preprocessing)
    if not masks:
        notes = (f"where images are defective is read from {where}", *notes)
    return found, notes


def find_regions(
    source: Source, data: str, masks: str, preprocessing: Preprocessing
) -> tuple[Regions, tuple[str, ...]]:
    """The defective regions of images, and notes for the user.

    Args:
        source: The images, of two classes, of which GOOD is the good one.
        data: The name of their data set.
        masks: A folder of masks with the images' names, in which all pixels but those of value 0 are defective; a
            COCO file (.json); or a column of the data set with masks, or with boxes (left, top, right, bottom).
        preprocessing: Of the model: only what it sees of an image counts.

    Raises BadData if nothing is known of any image, and for masks that do not fit.
    """
    read, notes = _reader(source, data, masks)
    images: list[ImageRegions | None] = []
    without: list[str] = []
    marked: list[str] = []
    unseen = 0
    for i in bar("reading masks")(range(len(source)), len(source)):
        picture = source.picture(i)
        regions = read(i, picture.size)
        count, seen = _as_seen(regions or (), preprocessing.visible(picture))
        is_good = source.target_array[i] == GOOD
        if is_good and count:
            marked.append(source.name(i))
            images.append(None)
        elif not is_good and not count:
            without.append(source.name(i))
            images.append(None)
        else:
            unseen += count - len(seen.regions)
            images.append(seen)
    known = sum(bool(each and each.regions) for each in images)
    if not known:
        raise BadData(
            f"none of the {counted(len(source), 'image')} has a defective region in {masks}; a mask has the name of "
            "its image, and pixels that are not 0 where the image is defective"
        )
    if without:
        notes.append(
            f"the map is not measured on {counted(len(without), 'image')} without a region in {masks}, such as "
            f"{without[0]}"
        )
    if marked:
        notes.append(
            f"the map is not measured on {counted(len(marked), 'good image')} with a defective region in {masks}, "
            f"such as {marked[0]}: is its folder right?"
        )
    if unseen:
        notes.append(
            f"{counted(unseen, 'region')} outside what the model sees of an image are not measured"
        )
    return Regions(tuple(images)), tuple(notes)


def _as_seen(
    regions: Iterable[Region], box: tuple[float, float, float, float]
) -> tuple[int, ImageRegions]:
    """The number of regions; and those in a part of the image, (top, left, height, width), at FINEST pixels or less."""
    top, left, height, width = box
    scale = min(1.0, FINEST / max(height, width))
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    count = 0
    seen = []
    for region in regions:
        count += 1
        rows, columns = np.nonzero(region.inside)
        down = np.floor((rows + region.box[1] + 0.5 - top) * size[0] / height).astype(int)
        across = np.floor((columns + region.box[0] + 0.5 - left) * size[1] / width).astype(int)
        inside = (down >= 0) & (down < size[0]) & (across >= 0) & (across < size[1])
        pixels = np.unique(down[inside] * size[1] + across[inside])
        if len(pixels):
            seen.append(pixels.astype(np.int32))
    return count, ImageRegions(size, tuple(seen))


def connected(mask: np.ndarray) -> Iterator[Region]:
    """The regions of a mask, bool (h, w): pixels that touch, also at corners, are of one."""
    return regions_of_classes(np.where(mask, 0, 1).astype(np.uint8), classes=1)


def _reader(source: Source, data: str, masks: str) -> tuple[Read, list[str]]:
    """How the regions of an image are found, and notes for the user."""
    if Path(masks).is_dir():
        return _from_folder(source, masks), []
    if masks.lower().endswith(".json"):
        return _from_coco(source, masks)
    boxes = _boxes_in_column(source, masks)
    if boxes is not None:

        def read_boxes(i: int, size: tuple[int, int]) -> Iterator[Region]:
            for box in boxes[int(source.rows[i])]:
                yield _box_region(box, size, f"{source.name(i)} has in {masks!r}")

        return read_boxes, []
    opened = open_masks(data, masks)

    def read(i: int, size: tuple[int, int]) -> Iterator[Region]:
        content = opened.store.read(int(source.rows[i]))
        return _regions_in_mask(content, f"the mask of {source.name(i)}", size)

    return read, []


def _regions_in_mask(
    content: bytes | np.ndarray, name: str, size: tuple[int, int]
) -> Iterator[Region]:
    """The regions of a mask of this size. Raises BadData for one of another size."""
    codes = codes_of(content, name)
    check_size(codes, size, name)
    return connected(codes != 0)


def _parts(path: str) -> tuple[str, ...]:
    """The folders and the name of a path, without the ending of images; written on any system."""
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    if parts:
        name = PurePosixPath(parts[-1])
        if name.suffix.lower() in IMAGE_SUFFIXES:
            parts[-1] = name.stem
    return tuple(parts)


def _alike_at_end(parts: Sequence[str], others: Sequence[str]) -> int:
    """The number of parts by which two paths end alike."""
    count = 0
    for part, other in zip(reversed(parts), reversed(others), strict=False):
        if part != other:
            break
        count += 1
    return count


class _Named:
    """Values by the paths of images, of which each may say more or fewer folders than the other."""

    def __init__(self, source: Source, where: str):
        """where: the folder or file of the values, for messages."""
        self.source = source
        self.where = where
        self.by_name: dict[str, list[tuple[tuple[str, ...], int]]] = {}
        self.taken: dict[int, int] = {}
        """The image of each value that was found."""
        self.names: list[str] = []

    def add(self, *paths: str, name: str) -> None:
        """Add the next value, for the image at any of these paths. name: of the value, for messages."""
        for path in paths:
            parts = _parts(path)
            if parts:
                self.by_name.setdefault(parts[-1], []).append((parts, len(self.names)))
        self.names.append(name)

    def find(self, i: int) -> int | None:
        """The number of the value of image i: the one whose path and the image's end alike, and furthest; None
        if there is none. Raises BadData if two fit equally well, or if another image already has the value."""
        name = self.source.name(i)
        whole = own = _parts(name)
        store = self.source.store
        if isinstance(store, Files):
            own = _parts(store.names[int(self.source.rows[i])])
            whole = _parts(os.path.abspath(name))  # noqa: PTH100  `resolve` would follow links
        found: dict[
            int, int
        ] = {}  # the number of folders and names that agree, of each value that fits
        for parts, number in self.by_name.get(own[-1], ()):
            alike = _alike_at_end(whole, parts)
            is_end = alike == len(parts)  # of the image's path
            has_folder = alike >= max(
                len(own), 2
            )  # the value's path names the image and its folder
            if is_end or has_folder:
                found[number] = max(alike, found.get(number, 0))
        best = [number for number, alike in found.items() if alike == max(found.values())]
        if not best:
            return None
        if len(best) > 1:
            raise BadData(
                f"{name} may be {self.names[best[0]]} or {self.names[best[1]]} in {self.where}: leave one of them, or "
                "name their folders as those of the images"
            )
        first = self.taken.setdefault(best[0], i)
        if first != i:
            raise BadData(
                f"{self.names[best[0]]} in {self.where} may be {self.source.name(first)} or {name}: name the folders "
                "of images there, such as crack/000.png"
            )
        return best[0]


def _from_folder(source: Source, folder: str) -> Read:
    """The masks in a folder, by the names of their images."""
    names, _ = find_images(folder)
    named = _Named(source, folder)
    for name in names:
        bare = str(PurePosixPath(name).with_suffix(""))
        fitting = [bare.removesuffix(ending) for ending in MASK_ENDINGS if bare.endswith(ending)]
        named.add(*fitting, name=name)
    files = Files.of(folder, names)

    def read(i: int, size: tuple[int, int]) -> Iterator[Region] | None:
        row = named.find(i)
        if row is None:
            return None
        name = files.name(row)
        if name.lower().endswith(JPEG):
            raise BadData(
                f"the mask {name} is a JPEG file, which changes the values of pixels: make the masks again as PNG"
            )
        return _regions_in_mask(files.read(row), name, size)

    return read


class _Annotated(NamedTuple):
    """An image in a COCO file."""

    size: tuple[int, int] | None
    """Height and width; None if the file does not say them."""
    annotations: list[dict]


def _from_coco(source: Source, path: str) -> tuple[Read, list[str]]:
    """The annotations in a COCO file: each is a region, by its segmentation, or else its box. And notes for the
    user."""
    named = _Named(source, path)
    images: list[_Annotated] = []
    try:
        values = parse_json(Path(path).read_bytes())
        by_id: dict[Any, _Annotated] = {}
        for each in values["images"]:
            size = None
            if "height" in each and "width" in each:
                size = (int(each["height"]), int(each["width"]))
            by_id[each["id"]] = _Annotated(size, [])
            images.append(by_id[each["id"]])
            named.add(str(each["file_name"]), name=str(each["file_name"]))
        for each in values["annotations"]:
            by_id[each["image_id"]].annotations.append(each)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadData(
            f"{path} is no COCO file of images and annotations: {type(error).__name__} {error}"
        ) from None

    def read(i: int, size: tuple[int, int]) -> Iterator[Region] | None:
        number = named.find(i)
        if number is None:
            return None
        found = images[number]
        if found.size not in (None, size):
            raise BadData(
                f"{source.name(i)} is {size[1]} x {size[0]} pixels, and in {path} {found.size[1]} x {found.size[0]}"
            )
        has = f"{source.name(i)} has in {path}"
        return (
            region
            for each in found.annotations
            if (region := _annotated_region(each, size, has)) is not None
        )

    notes = []
    if any("score" in each for found in images for each in found.annotations):
        notes.append(
            f"{path} has regions with a score, as models write them: unless a person has corrected these, the map is "
            "compared with a model's answers, not with defects"
        )
    return read, notes


def _annotated_region(annotation: dict, size: tuple[int, int], has: str) -> Region | None:
    """The region of an annotation in a COCO file; None if it has no pixel. has: as `_box_region` takes it."""
    try:
        segmentation = annotation.get("segmentation")
        if segmentation:
            mask = region_of(segmentation, size)
            points = np.zeros((0, 2))
            if isinstance(segmentation, list):
                points = np.concatenate([np.reshape(each, (-1, 2)) for each in segmentation])
        else:
            left, top, width, height = (float(value) for value in annotation["bbox"])
    except (BadData, TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
        raise BadData(
            f"{has} an annotation that is neither a box, polygons nor run lengths: {error}"
        ) from None
    if not segmentation:
        return _box_region((left, top, left + width, top + height), size, has)
    if len(points):
        _check_edges(np.concatenate([points.min(0), points.max(0)]), size, f"{has} a polygon")
    area = int(mask.sum())
    if not area:
        return None
    return Region(0, (0, 0, size[1], size[0]), area, mask)


def _box_region(box: Sequence[float], size: tuple[int, int], has: str) -> Region:
    """The pixels of a box (left, top, right, bottom), at least one. Raises BadData for what is none.

    has: beginning of a sentence, such as "0.png has in boxes.json"."""
    try:
        edges = np.asarray(box, dtype=float)
    except (TypeError, ValueError):
        edges = np.zeros(0)
    if edges.shape != (4,) or not np.isfinite(edges).all() or (edges[:2] > edges[2:]).any():
        raise BadData(f"{has} {box}, which is no box: left, top, right and bottom, in pixels")
    _check_edges(edges, size, f"{has} a box")
    left, top, right, bottom = edges.round().clip(0, [*size[::-1], *size[::-1]]).astype(int)
    left = min(left, size[1] - 1)
    top = min(top, size[0] - 1)
    width = max(right - left, 1)
    height = max(bottom - top, 1)
    inside = np.broadcast_to(np.True_, (height, width))
    return Region(0, (left, top, width, height), height * width, inside)


def _check_edges(edges: np.ndarray, size: tuple[int, int], what: str) -> None:
    """Raises BadData for edges (left, top, right, bottom) that are outside of an image of (height, width), or that
    are shares of its sides. what: beginning of the sentence."""
    left, top, right, bottom = edges.tolist()
    where = f"from ({left:g}, {top:g}) to ({right:g}, {bottom:g})"
    if left >= size[1] or top >= size[0] or right <= 0 or bottom <= 0:
        raise BadData(
            f"{what} {where}, outside of the image, which is {size[1]} x {size[0]} pixels: is it of another size or "
            "another image?"
        )
    if min(size) > 1 and min(left, top) >= 0 and max(right, bottom) <= 1:
        raise BadData(
            f"{what} {where}, which seem to be shares of the image's sides: multiply them by {size[1]} and {size[0]} "
            "pixels"
        )


def _boxes_in_column(source: Source, column: str) -> list[list] | None:
    """The boxes of each row of a source's parquet files; None if this is no column of lists of numbers."""
    import pyarrow as pa

    files = getattr(source.store, "files", ())
    if not files or not all(str(file).endswith(".parquet") for file in files):
        return None
    rows: list[list] = []
    for file in files:
        with remote.parquet_file(file) as opened:
            schema = opened.schema_arrow
            if column not in schema.names:
                return None
            kind = schema.field(column).type
            if not pa.types.is_list(kind) or not pa.types.is_list(kind.value_type):
                return None
            rows += [boxes or [] for boxes in opened.read(columns=[column])[column].to_pylist()]
    return rows
