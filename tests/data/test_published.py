"""Data sets as their authors publish them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pictures import encoded, photograph
from scipy.io import savemat
from sklearn.datasets import load_digits

from vitkit.data import open_source, open_splits
from vitkit.data.formats import published

RANDOM = np.random.default_rng(0)


def cifar(path: Path, classes, labels=1):
    """Records of these classes; -> the pixels (N, 32, 32, 3)."""
    pixels = RANDOM.integers(0, 256, (len(classes), 32, 32, 3), dtype=np.uint8)
    rows = b""
    for image, k in zip(pixels, classes, strict=True):
        rows += bytes([99] * (labels - 1) + [k]) + image.transpose(2, 0, 1).tobytes()
    path.write_bytes(rows)
    return pixels


def test_the_digits_are_those_of_scikit_learn():
    """Their levels are 0 to 16, and a fifth is the test part."""
    digits = load_digits()
    source = open_source("digits")
    assert len(source) == 359
    for i, row in enumerate(source.rows[:50]):
        np.testing.assert_allclose(source[i][0], digits.images[row] * 255 / 16, atol=0.5)
        assert source.targets[i] == digits.target[row]


def test_digits_that_scikit_learn_keeps_elsewhere_are_the_same(tmp_path, monkeypatch):
    images, labels = published._digits.__wrapped__()
    nowhere = SimpleNamespace(origin=str(tmp_path / "sklearn/__init__.py"))
    monkeypatch.setattr(published, "find_spec", lambda name: nowhere)
    for ours, theirs in zip(published._digits.__wrapped__(), (images, labels), strict=True):
        assert (ours == theirs).all() and ours.dtype == theirs.dtype


def test_cifar_10(tmp_path):
    first = cifar(tmp_path / "data_batch_1.bin", [0, 2])
    cifar(tmp_path / "data_batch_2.bin", [1])
    last = cifar(tmp_path / "test_batch.bin", [2, 0])
    (tmp_path / "batches.meta.txt").write_text("airplane\nautomobile\nbird\n\n")
    splits = open_splits(str(tmp_path))
    assert splits.labels == ("airplane", "automobile", "bird")
    assert splits.train.targets.tolist() == [0, 2, 1] and splits.test.targets.tolist() == [2, 0]
    assert (splits.train[0][0] == first[0]).all() and (splits.test[1][0] == last[1]).all()

    with (tmp_path / "test_batch.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ValueError, match="records of 3,073"):
        open_splits(str(tmp_path))


def test_cifar_100_has_fine_labels(tmp_path):
    cifar(tmp_path / "train.bin", [3, 1], labels=2)
    cifar(tmp_path / "test.bin", [0], labels=2)
    (tmp_path / "fine_label_names.txt").write_text("apple\naquarium_fish\nbaby\nbear\n")
    splits = open_splits(str(tmp_path))
    assert splits.train.targets.tolist() == [3, 1] and splits.labels[3] == "bear"


def test_a_pickle_is_named_and_not_read(tmp_path):
    for name in ("batches.meta", "data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match="Python version, which is pickled"):
        open_splits(str(tmp_path))


def put(path: Path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_pets_are_named_by_their_breed(tmp_path):
    picture = encoded(photograph(20, 20, 0), "JPEG")
    for name in ("Abyssinian_1", "american_bulldog_10", "american_bulldog_2"):
        put(tmp_path / "images" / f"{name}.jpg", picture)
    put(
        tmp_path / "annotations" / "trainval.txt",
        b"#Image CLASS-ID\nAbyssinian_1 1 1 1\namerican_bulldog_10 2 2 1\n",
    )
    put(tmp_path / "annotations" / "test.txt", b"american_bulldog_2 2 2 1\n")
    splits = open_splits(str(tmp_path))
    assert splits.labels == ("Abyssinian", "american_bulldog")
    assert splits.train.targets.tolist() == [0, 1] and splits.test[0] == (picture, 1)
    put(tmp_path / "annotations" / "test.txt", b"../../x_1 2 2 1\n")
    with pytest.raises(ValueError, match="test.txt line 1 is"):
        open_splits(str(tmp_path))


def test_flowers_are_numbered_from_0(tmp_path):
    picture = encoded(photograph(20, 20, 0), "JPEG")
    for number in range(1, 6):
        put(tmp_path / "jpg" / f"image_{number:05d}.jpg", picture)
    savemat(tmp_path / "imagelabels.mat", {"labels": np.array([[1, 2, 3, 1, 2]], np.uint8)})
    ids = {"trnid": [[2, 1, 3]], "valid": [[4]], "tstid": [[5]]}
    savemat(tmp_path / "setid.mat", {name: np.array(rows, np.uint16) for name, rows in ids.items()})
    splits = open_splits(str(tmp_path))
    assert splits.labels == ("0", "1", "2") and splits.train.targets.tolist() == [0, 1, 2]
    assert splits.val.targets.tolist() == [0] and splits.test.targets.tolist() == [1]
    (tmp_path / "setid.mat").write_bytes(b"no matrix")
    with pytest.raises(ValueError, match="setid.mat is not the published file"):
        open_splits(str(tmp_path))
