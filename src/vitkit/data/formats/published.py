"""Data sets in the layout of their authors: scikit-learn's digits, CIFAR-10 and CIFAR-100 (the binary
version), Oxford-IIIT Pets and Oxford 102 Flowers. Each of the last four is the folder that its
archives unpack to.

CIFAR's Python version is a pickle, which can execute any code. It is refused, and the message names
the binary version.
"""

import zlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vitkit.data.sources.source import TEST_SHARE, stratified
from vitkit.data.sources.stores import Arrays, Files
from vitkit.data.sources.tables import Columns, Table
from vitkit.data.sources.targets import as_row_labels
from vitkit.system.errors import BadData

SIDE = 32  # pixels of CIFAR's images
MAX_BYTES = 1 << 28  # of a file of CIFAR, the largest of which has 154 million


def read_digits(where: str, columns: Columns) -> Table | None:
    """Read "digits": 1,797 handwritten digits of 8 by 8 pixels, with levels 0 to 16 scaled to 0 to 255.

    A fixed fifth is the test part. The first run of the documentation and most tests use this data set.
    """
    if where != "digits":
        return None
    levels, labels = _digits()
    images = (levels * (255 / 16)).round().astype(np.uint8)
    parts = np.full(len(images), "train", dtype=object)
    _, test_rows = stratified(labels, TEST_SHARE, seed=0)
    parts[test_rows] = "test"
    row_labels = as_row_labels(labels, where, columns.target)
    return Table(Arrays("digits", images), row_labels, parts, tuple("0123456789"), ())


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """The images of scikit-learn's digits and their labels.

    They are read from its file, because importing scikit-learn takes longer than some runs, and cached,
    because so does reading compressed text.
    """
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None  # vitkit needs it
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():  # another version of scikit-learn
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target.astype(np.int64)
    numbers = np.loadtxt(file, delimiter=",")  # (1797, 64 levels and the label)
    return numbers[:, :-1].reshape(-1, 8, 8), numbers[:, -1].astype(np.int64)


def read_published(where: str, columns: Columns) -> Table | None:
    """The table of one of these data sets; None for any other folder. Raises VitkitError if a file
    is malformed."""
    folder = Path(where)
    if not folder.is_dir():
        return None
    for marks, read in LAYOUTS:
        if all((folder / mark).exists() for mark in marks):
            return read(folder, columns)
    pickled = (("batches.meta", "test_batch"), ("meta", "test", "train"))
    if any(all((folder / name).is_file() for name in names) for names in pickled):
        raise BadData(
            f"{folder} is CIFAR's Python version, which is pickled, and a pickle can execute any "
            "code; get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html"
        )
    return None


# CIFAR: records of labels, then red, green and blue pixels


def _cifar10(folder: Path, columns: Columns) -> Table:
    """data_batch_1.bin to data_batch_5.bin, test_batch.bin, batches.meta.txt."""
    batches = sorted(folder.glob("data_batch_*.bin"))
    files = dict.fromkeys(batches, "train") | {folder / "test_batch.bin": "test"}
    return _cifar(folder, files, 1, "batches.meta.txt", columns)


def _cifar100(folder: Path, columns: Columns) -> Table:
    """train.bin, test.bin, fine_label_names.txt: a coarse label, then the fine one."""
    files = {folder / "train.bin": "train", folder / "test.bin": "test"}
    return _cifar(folder, files, 2, "fine_label_names.txt", columns)


def _cifar(
    folder: Path, files: dict[Path, str], labels: int, names: str, columns: Columns
) -> Table:
    """Read the records of several files, each with `labels` bytes of labels. The last is the class."""
    record = labels + 3 * SIDE * SIDE
    images = []
    classes = []
    parts = []
    for file, part in files.items():
        size = file.stat().st_size
        if not size or size % record or size > MAX_BYTES:
            raise BadData(
                f"{file} has {size:,} bytes, which is not a number of records of {record:,}; get it again"
            )
        records = np.fromfile(file, np.uint8).reshape(-1, record)
        pixels = records[:, labels:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        images.append(np.ascontiguousarray(pixels))
        classes.append(records[:, labels - 1].astype(np.int64))
        parts += [part] * len(records)
    known = tuple((folder / names).read_text("utf-8").split())
    row_labels = as_row_labels(np.concatenate(classes), str(folder), columns.target)
    store = Arrays(folder.name, np.concatenate(images))
    return Table(store, row_labels, np.array(parts, dtype=object), known, ())


# Pets and Flowers: a folder of images, and files of labels


def _pets(folder: Path, columns: Columns) -> Table:
    """images/Abyssinian_1.jpg, annotations/trainval.txt and test.txt: "Abyssinian_100 1 1 1"."""
    names = []
    breeds = []
    parts = []
    for file, part in {"trainval.txt": "train", "test.txt": "test"}.items():
        path = folder / "annotations" / file
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name = line.split()[0]
            breed, _, index = name.rpartition("_")
            if not breed or not index.isdecimal() or "/" in name:
                raise BadData(
                    f'{path} line {number} is {line[:100]!r}; expected "Abyssinian_100 1 1 1"'
                )
            names.append(f"images/{name}.jpg")
            breeds.append(breed)
            parts.append(part)
    row_labels = as_row_labels(np.array(breeds, dtype=object), str(folder), columns.target)
    return Table(Files.of(folder, names), row_labels, np.array(parts, dtype=object), None, ())


def _flowers(folder: Path, columns: Columns) -> Table:
    """jpg/image_00001.jpg, imagelabels.mat, setid.mat. The authors number classes from 1; here they are
    numbered from 0, as in TensorFlow Datasets."""
    classes = _matrix(folder / "imagelabels.mat", "labels").astype(np.int64) - 1
    parts = np.full(len(classes), None, dtype=object)
    for name, part in {"trnid": "train", "valid": "val", "tstid": "test"}.items():
        rows = _matrix(folder / "setid.mat", name).astype(np.int64) - 1
        if not len(rows) or rows.min() < 0 or rows.max() >= len(classes):
            raise BadData(f"{folder / 'setid.mat'} has images that imagelabels.mat does not have")
        parts[rows] = part
    names = [f"jpg/image_{i + 1:05d}.jpg" for i in range(len(classes))]
    row_labels = as_row_labels(classes, str(folder), columns.target)
    return Table(Files.of(folder, names), row_labels, parts, None, ())


def _matrix(path: Path, name: str) -> np.ndarray:
    """The numbers of a variable in a MATLAB file, in one row. Raises VitkitError."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return loadmat(path, variable_names=[name])[name].reshape(-1)
    except (OSError, LookupError, ValueError, TypeError, MatReadError, zlib.error) as error:
        raise BadData(
            f"{path} is not the published file: {str(error) or type(error).__name__}"
        ) from None


# The files that identify each data set
LAYOUTS = (
    (("test_batch.bin", "data_batch_1.bin", "batches.meta.txt"), _cifar10),
    (("train.bin", "test.bin", "fine_label_names.txt"), _cifar100),
    (("images", "annotations/trainval.txt", "annotations/test.txt"), _pets),
    (("jpg", "imagelabels.mat", "setid.mat"), _flowers),
)
