"""Where images are defective, as people have it: a folder of masks, a COCO file, or a column with masks or boxes.

Legend: N images, R regions, (h, w) pixels of an image, (H, W) pixels that are compared.
"""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from vitkit.data import Files, Preprocessing, Source, find_images, open_masks
from vitkit.data.formats.layout import BESIDE
from vitkit.data.masks.coco import region_of
from vitkit.data.masks.pairs import ENDINGS as MASK_ENDINGS
from vitkit.data.masks.reading import codes_of
from vitkit.data.sources.tables import PARTS
from vitkit.evaluation.metrics.defects import GOOD
from vitkit.evaluation.metrics.overlap import FINEST, ImageRegions, Regions
from vitkit.inspection import has_anomaly_map
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.storage import remote
from vitkit.system.storage.files import parse_json
from vitkit.weights import Classifier

JPEG = (".jpg", ".jpeg")

Read = Callable[[int, tuple[int, int]], list[np.ndarray] | None]
"""The regions of image i of (height, width), bool (h, w) each; None if nothing is known of it."""


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
    if not has_anomaly_map(classifier):
        if masks:
            raise BadSettings(
                "an exported file gives probabilities, of which most are 0 or 1, and `masks` measure scores of "
                "patches: give the model that it was made of"
            )
        return None, ()
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
    read = _reader(source, data, masks)
    images: list[ImageRegions | None] = []
    without: list[str] = []
    marked: list[str] = []
    unseen = 0
    for i in bar("reading masks")(range(len(source)), len(source)):
        picture = source.picture(i)
        regions = read(i, picture.size)
        is_good = source.target_array[i] == GOOD
        if is_good and regions:
            marked.append(source.name(i))
            regions = None
        elif is_good:
            regions = []
        elif not regions:
            without.append(source.name(i))
            regions = None
        if regions is None:
            images.append(None)
            continue
        seen = _as_seen(regions, preprocessing.visible(picture))
        unseen += len(regions) - len(seen.masks)
        images.append(seen)
    known = sum(bool(each and each.masks) for each in images)
    if not known:
        raise BadData(
            f"none of the {counted(len(source), 'image')} has a defective region in {masks}; a mask has the name of "
            "its image, and pixels that are not 0 where the image is defective"
        )
    notes = []
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


def _as_seen(regions: Sequence[np.ndarray], box: tuple[float, float, float, float]) -> ImageRegions:
    """The regions in a part of an image, (top, left, height, width), at FINEST pixels or less; those outside of it
    are left out."""
    top, left, height, width = box
    scale = min(1.0, FINEST / max(height, width))
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    masks = []
    for region in regions:
        rows, columns = np.nonzero(region)
        down = np.floor((rows + 0.5 - top) * size[0] / height).astype(int)
        across = np.floor((columns + 0.5 - left) * size[1] / width).astype(int)
        inside = (down >= 0) & (down < size[0]) & (across >= 0) & (across < size[1])
        mask = np.zeros(size, bool)
        mask[down[inside], across[inside]] = True
        if mask.any():
            masks.append(mask)
    return ImageRegions(size, tuple(masks))


def connected(mask: np.ndarray) -> list[np.ndarray]:
    """The regions of a mask, bool (h, w): pixels that touch, also at corners, are of one."""
    from scipy.ndimage import label

    numbered, count = label(mask, np.ones((3, 3)))
    return [numbered == number for number in range(1, count + 1)]


def _reader(source: Source, data: str, masks: str) -> Read:
    """How the regions of an image are found."""
    if Path(masks).is_dir():
        return _from_folder(source, masks)
    if masks.lower().endswith(".json"):
        return _from_coco(source, masks)
    boxes = _boxes_in_column(source, masks)
    if boxes is not None:
        return lambda i, size: [_box_mask(box, size) for box in boxes[int(source.rows[i])]]
    opened = open_masks(data, masks)
    return lambda i, size: _regions_in_mask(
        opened.store.read(int(source.rows[i])), f"the mask of {source.name(i)}", size
    )


def _regions_in_mask(
    content: bytes | np.ndarray, name: str, size: tuple[int, int]
) -> list[np.ndarray]:
    """The regions of a mask of this size. Raises BadData for one of another size."""
    codes = codes_of(content, name)
    if codes.shape != size:
        raise BadData(
            f"{name} is {codes.shape[1]} x {codes.shape[0]} pixels, and its image {size[1]} x {size[0]} "
            "(upright): make the mask again at the size of its image"
        )
    return connected(codes != 0)


def _from_folder(source: Source, folder: str) -> Read:
    """The masks in a folder, by the names of their images."""
    names, _ = find_images(folder)
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        bare = str(PurePosixPath(name).with_suffix(""))
        for ending in MASK_ENDINGS:
            if bare.endswith(ending):
                rows.setdefault(bare.removesuffix(ending), row)
    files = Files.of(folder, names)
    image_of: dict[int, int] = {}

    def read(i: int, size: tuple[int, int]) -> list[np.ndarray] | None:
        row = _found(source, i, rows)
        if row is None:
            return None
        name = files.name(row)
        first = image_of.setdefault(row, i)
        if first != i:
            raise BadData(
                f"{name} would be the mask of {source.name(first)} and of {source.name(i)}: put masks into folders as "
                "the images are, such as ground_truth/crack/000_mask.png for test/crack/000.png"
            )
        if name.lower().endswith(JPEG):
            raise BadData(
                f"the mask {name} is a JPEG file, which changes the values of pixels: make the masks again as PNG"
            )
        return _regions_in_mask(files.read(row), name, size)

    return read


def _found(source: Source, i: int, values: dict[str, Any]) -> Any:
    """The value of image i by its path without suffix, or by the end of that path; None without one."""
    name = source.name(i)
    if isinstance(source.store, Files):
        name = source.store.names[int(source.rows[i])]
    folders = PurePosixPath(name).with_suffix("").parts
    for start in range(len(folders)):
        value = values.get("/".join(folders[start:]))
        if value is not None:
            return value
    return None


class _Annotated(NamedTuple):
    """An image in a COCO file."""

    size: tuple[int, int] | None
    """Height and width; None if the file does not say them."""
    annotations: list[dict]


def _from_coco(source: Source, path: str) -> Read:
    """The annotations in a COCO file: each is a region, by its segmentation, or else its box."""
    by_name: dict[str, _Annotated] = {}
    try:
        values = parse_json(Path(path).read_bytes())
        by_id: dict[Any, _Annotated] = {}
        for each in values["images"]:
            size = None
            if "height" in each and "width" in each:
                size = (int(each["height"]), int(each["width"]))
            by_id[each["id"]] = _Annotated(size, [])
            bare = PurePosixPath(str(each["file_name"])).with_suffix("")
            by_name[str(bare)] = by_id[each["id"]]
        for each in values["annotations"]:
            by_id[each["image_id"]].annotations.append(each)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadData(
            f"{path} is no COCO file of images and annotations: {type(error).__name__} {error}"
        ) from None

    def read(i: int, size: tuple[int, int]) -> list[np.ndarray] | None:
        found = _found(source, i, by_name)
        if found is None:
            return None
        if found.size not in (None, size):
            raise BadData(
                f"{source.name(i)} is {size[1]} x {size[0]} pixels, and in {path} {found.size[1]} x {found.size[0]}"
            )
        regions = []
        for each in found.annotations:
            try:
                if each.get("segmentation"):
                    region = region_of(each["segmentation"], size)
                else:
                    left, top, width, height = (float(value) for value in each["bbox"])
                    region = _box_mask((left, top, left + width, top + height), size)
            except (BadData, TypeError, ValueError, KeyError, OverflowError) as error:
                raise BadData(
                    f"an annotation of {source.name(i)} in {path} is neither a box, polygons nor run lengths: {error}"
                ) from None
            if region.any():
                regions.append(region)
        return regions

    return read


def _box_mask(box: Sequence[float], size: tuple[int, int]) -> np.ndarray:
    """The pixels of a box (left, top, right, bottom), at least one: bool (h, w). Raises BadData for what is none."""
    edges = np.asarray(box, dtype=float)
    if edges.shape != (4,) or not np.isfinite(edges).all() or (edges[:2] > edges[2:]).any():
        raise BadData(f"{list(box)} is no box: left, top, right and bottom, in pixels")
    left, top, right, bottom = edges.round().astype(int)
    top = min(max(top, 0), size[0] - 1)
    left = min(max(left, 0), size[1] - 1)
    mask = np.zeros(size, bool)
    mask[top : max(bottom, top + 1), left : max(right, left + 1)] = True
    return mask


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
