"""Benchmarks by name: the classes of their folders, the answers that their authors allow, and their numbers
of images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from vitkit.data import Columns, Source, open_image, parts_at, source_at, subset
from vitkit.data.sources.splits import Parts
from vitkit.data.sources.stores import Store
from vitkit.evaluation.benchmarks.choice import (
    Choice,
    among_all,
    among_the_datas,
    several_are_right,
)
from vitkit.evaluation.benchmarks.imagenet import find_labels, number, read_json
from vitkit.evaluation.benchmarks.labels import align, imagenet_wordnet, unknown
from vitkit.system.console.text import some
from vitkit.system.errors import BadData, BadImage, VitkitError
from vitkit.weights import imagenet_labels

SetName = Literal[
    "imagenet", "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch", "objectnet"
]


@dataclass(frozen=True)
class NamedSet:
    """A data set of ImageNet's classes, and its authors' protocol."""

    title: str
    """The displayed name of the data set."""
    images: int
    """Number of images of the published data set."""
    source: str
    """Address of the page to download it from."""
    protocol: str
    """A sentence about which answers are allowed and count as right."""
    classes: str = ""
    """Name of the file with its classes, if it has only some of ImageNet's: only these may be answered."""


ALL_CLASSES = "any of the model's classes may be answered"
OF_200 = "only its 200 classes may be answered, as its authors measure"

SETS: dict[str, NamedSet] = {
    "imagenet": NamedSet(
        "ImageNet's validation part", 50_000, "https://image-net.org", ALL_CLASSES
    ),
    "imagenet-v2": NamedSet(
        "ImageNet-v2", 10_000, "https://huggingface.co/datasets/vaishaal/ImageNetV2", ALL_CLASSES
    ),
    "imagenet-a": NamedSet(
        "ImageNet-A", 7_500, "https://github.com/hendrycks/natural-adv-examples", OF_200,
        "imagenet_a_wordnet.txt",
    ),
    "imagenet-r": NamedSet(
        "ImageNet-R", 30_000, "https://github.com/hendrycks/imagenet-r", OF_200,
        "imagenet_r_wordnet.txt",
    ),
    "imagenet-sketch": NamedSet(
        "ImageNet-Sketch", 50_889, "https://github.com/HaohanWang/ImageNet-Sketch", ALL_CLASSES
    ),
    "objectnet": NamedSet(
        "ObjectNet", 18_574, "https://objectnet.dev",
        "any of the model's classes may be answered, and every class of ImageNet that an object is "
        "counts as right; the border of one pixel is cut off",
    ),
}  # fmt: skip


# ImageNet-C's folders are opened by imagenet_c.py, one by one
IMAGENET_C = NamedSet(
    "ImageNet-C",
    50_000,
    "https://zenodo.org/records/2235448",
    f"{ALL_CLASSES}; its images are squares, so nothing is cropped: each is brought to the model's "
    "size whole. CE is the error in proportion to AlexNet's",
)


BORDER = 1  # width, in pixels, of the border of ObjectNet's images
FOLDERS = "folder_to_objectnet_label.json"
CLASSES = "objectnet_to_imagenet_1k.json"


class Named(NamedTuple):
    """A named data set on this machine."""

    source: Source
    """The images, whose classes are WordNet IDs, or ObjectNet's names of objects."""
    notes: tuple[str, ...]
    """Sentences about the protocol, and about differences from the published data set."""
    restricted: bool
    """Whether only the data set's own classes may be answered."""
    right: tuple[tuple[str, ...], ...] = ()
    """The WordNet IDs that are right for each class; empty if each class is one of ImageNet's."""

    def choice(self, model: Sequence[str]) -> Choice:
        """The answers that a model with these classes may give. Raises VitkitError if the model does not
        know a class of the data."""
        labels = self.source.labels
        if self.right:
            _check_known(list(chain.from_iterable(self.right)), model)
            return several_are_right(labels, self.right, model)
        if self.restricted:
            _check_known(labels, model)
            return among_the_datas(labels, model)
        present = np.unique(self.source.target_array)
        _check_known([labels[k] for k in present], model)
        return among_all(labels, model, present)


def _check_known(needed: Sequence[str], model: Sequence[str]) -> None:
    """Raises VitkitError for a model that lacks one of these classes, given as WordNet IDs."""
    others = unknown(needed, model)
    if not others:
        return
    names = ", ".join(_readable([needed[k] for k in others[:3]]))
    has = some(model, 3)
    raise BadData(
        f"the images are of ImageNet's classes, and the model does not know {len(others):,} of these "
        f"{len(needed):,} ({names}, for example): its own are {has}; "
        "fewshot says what its features are worth there"
    )


def open_named(
    name: SetName,
    where: str,
    columns: Columns | None = None,
    split: str | None = None,
    *,
    typed: bool = False,
) -> Named:
    """Open the images of a named data set to measure on.

    split: the part to open, by default test, else val.
    typed: whether a user typed `where`, so that it may name a Python function.

    Raises VitkitError for images that are not of the data set, and as `open_source` does.
    """
    named = SETS[name]
    right: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    if name == "objectnet":
        source, right = _open_objectnet(where)
    else:
        source, notes = _as_named(name, source_at(where, columns, split, typed=typed), where)
    notes = (f"{named.title}: {named.protocol}", *notes, *_fewer(named, source))
    return Named(source, notes, bool(named.classes), right)


def open_named_parts(
    name: SetName, where: str, columns: Columns | None = None, *, typed: bool = False
) -> Parts:
    """Open all parts of a named data set, to learn from. Classes have plain names, not WordNet IDs, and each
    is an answer of its own, even if the data set's protocol counts several as the same.

    typed: whether a user typed `where`, so that it may name a Python function.

    Raises VitkitError as `open_named` does.
    """
    if name == "objectnet":
        source, _ = _open_objectnet(where)
        return Parts({"": source}, _fewer(SETS[name], source))
    opened = parts_at(where, columns, typed=typed)
    notes = list(opened.notes)
    sources = {}
    for part, source in opened.sources.items():
        own, more = _as_named(name, source, where)
        sources[part] = replace(own, labels=_readable(own.labels))
        notes += more
        if part != "train":
            notes += _fewer(SETS[name], own)
    return Parts(sources, tuple(notes), opened.unlearned)


def _readable(wordnet: Sequence[str]) -> tuple[str, ...]:
    """ImageNet's names of classes, from their WordNet IDs."""
    names = dict(zip(imagenet_wordnet(), imagenet_labels(), strict=True))
    return tuple(names[wnid] for wnid in wordnet)


def _fewer(named: NamedSet, source: Source) -> tuple[str, ...]:
    """A sentence, if the number of images differs from that of the published data set."""
    if len(source) == named.images:
        return ()
    return (
        f"these are {len(source):,} images, and {named.title} has {named.images:,}: the numbers "
        "are not those of the whole data set",
    )


def _classes(named: NamedSet) -> tuple[str, ...]:
    """The WordNet IDs of a data set's classes, in ascending order."""
    if not named.classes:
        return imagenet_wordnet()
    return tuple((Path(__file__).parent / named.classes).read_text().split())


def _as_named(name: SetName, source: Source, where: str) -> tuple[Source, tuple[str, ...]]:
    """The source with the classes of a named data set, and notes on the origin of its labels."""
    named = SETS[name]
    if source.target_kind == "none" and name == "imagenet":
        labelled, note = _labelled_by_number(source, where)
        return labelled, (note,)
    if source.target_kind != "class":
        raise BadData(
            f"{where} is not {named.title}: its targets are of the kind {source.target_kind!r}, and "
            f"a folder for each class is expected (from {named.source})"
        )
    return _with_classes(source, _classes(named), named, where), ()


def _with_classes(source: Source, classes: tuple[str, ...], named: NamedSet, where: str) -> Source:
    """The source with its labels mapped to the classes of the data set. Its labels are WordNet IDs,
    ImageNet's names, or indices 0 to 999 in ImageNet's order, as the names of ImageNet-v2's folders."""
    present = np.unique(source.target_array)
    labels = [source.labels[k] for k in present.tolist()]
    try:
        if all(label.isdecimal() and int(label) < 1000 for label in labels):
            labels = [imagenet_wordnet()[int(label)] for label in labels]
        positions = align(labels, classes).classes.numpy()
    except VitkitError:
        raise BadData(
            f"{where} is not {named.title}: it has the classes {', '.join(labels[:5])}, ..., and "
            f"these are not all among its {len(classes):,} ({', '.join(classes[:3])}, ...)"
        ) from None
    numbers = np.full(len(source.labels), -1)
    numbers[present] = positions
    return replace(source, targets=numbers[source.target_array], labels=classes)


def _labelled_by_number(source: Source, where: str) -> tuple[Source, str]:
    """Validation images with the classes from a file of labels near them, and a note about that file."""
    labels, path = find_labels(where)
    numbers = [number(source.name(i)) for i in range(len(source))]
    if None in numbers:
        wrong = source.name(numbers.index(None))
        raise BadData(
            f"{wrong} is in no class folder, and does not have the name of an ImageNet validation image "
            "(ILSVRC2012_val_00000001.JPEG)"
        )
    targets = labels[np.array(numbers) - 1]
    if (targets < 0).any():
        missing = source.name(int(np.flatnonzero(targets < 0)[0]))
        raise BadData(f"{path} has no class for {missing}")
    labelled = replace(
        source, targets=targets.astype(np.int64), labels=imagenet_wordnet(), target_kind="class"
    )
    return labelled, f"the classes of the images are from {path}"


# ObjectNet (Barbu et al. 2019; Appendix D.9 of the ViT paper): photographs of 313 kinds of objects, of
# which 113 correspond to one or several of ImageNet's classes. They have a red border of one pixel that is
# not part of the photograph: it is cut off.


@dataclass(frozen=True, eq=False)
class WithoutBorder:
    """The images of another store without their border."""

    store: Store

    def read(self, row: int) -> np.ndarray:
        """The image as uint8 (h, w, 3). Raises BadImage."""
        name = self.name(row)
        pixels = open_image(self.store.read(row), name).pixels()
        inner = pixels[BORDER:-BORDER, BORDER:-BORDER]
        if not inner.size:
            raise BadImage(f"{name} has nothing but a border of {BORDER} pixel")
        return inner

    def name(self, row: int) -> str:
        return self.store.name(row)

    def identity(self, row: int) -> str:
        return f"{self.store.identity(row)} without border"

    def prepare(self, rows: np.ndarray) -> None:
        self.store.prepare(rows)

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        return self.store.chunks(rows)

    def keeping(self, chunks: int) -> "WithoutBorder":
        return replace(self, store=self.store.keeping(chunks))


def _open_objectnet(where: str) -> tuple[Source, tuple[tuple[str, ...], ...]]:
    """The images of the objects that are in ImageNet, without their border; and for each object the WordNet
    IDs of its classes.

    `where` is the downloaded folder, with `images` and `mappings`, or `images` itself. Raises VitkitError
    for missing or malformed mappings, and for folders that are not in them.
    """
    root = Path(where)
    if (root / "images").is_dir():
        root = root / "images"
    mappings = _mappings(root)
    object_of_folder = _names(mappings / FOLDERS)
    names_of_object = _names(mappings / CLASSES)

    # The objects that are in ImageNet, and the index of each folder's object, or -1
    source = source_at(str(root), Columns())
    objects = sorted(names_of_object)
    number_of = {name: i for i, name in enumerate(objects)}
    numbers = []
    for folder in source.labels:
        if folder not in object_of_folder:
            raise BadData(f"{root} has the folder {folder!r}, which is not in {mappings / FOLDERS}")
        numbers.append(number_of.get(object_of_folder[folder], -1))

    # The images of these objects
    targets = np.array(numbers, dtype=np.int64)[source.target_array]
    overlapping = subset(source, np.flatnonzero(targets >= 0))
    if not len(overlapping):
        raise BadData(f"{root} has no image of an object that is in ImageNet")
    store = WithoutBorder(source.store)
    images = Source(store, overlapping.rows, targets[targets >= 0], tuple(objects))
    wnids = tuple(_wnids(names_of_object[name], mappings / CLASSES) for name in objects)
    return images, wnids


def _mappings(images: Path) -> Path:
    """The folder of the mappings, beside the images. Raises VitkitError if it is missing."""
    for folder in (images.parent / "mappings", images / "mappings"):
        if (folder / FOLDERS).is_file() and (folder / CLASSES).is_file():
            return folder
    raise BadData(
        f"{images.parent / 'mappings'} needs {FOLDERS} and {CLASSES} of ObjectNet's download, which "
        "map its folders to ImageNet's classes"
    )


def _names(path: Path) -> dict[str, str]:
    """Read a JSON object of strings. Raises VitkitError for anything else."""
    values = read_json(path)
    if not isinstance(values, dict) or not all(type(name) is str for name in values.values()):
        raise BadData(f"{path} is not ObjectNet's: expected an object with names as values")
    return values


def _wnids(names: str, path: Path) -> tuple[str, ...]:
    """The WordNet IDs of the ImageNet classes that an entry such as "analog clock; digital clock" lists.
    Raises VitkitError for a class that is not in ImageNet."""
    try:
        classes = align(names.split("; "), imagenet_labels()).classes.tolist()
    except VitkitError:
        raise BadData(f"{path} has {names[:100]!r}, which are not classes of ImageNet") from None
    return tuple(imagenet_wordnet()[k] for k in classes)
