"""Photographs filed by class: where, under which name, and never in the place of another."""

import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from vitkit.prediction import Prediction, Sorter
from vitkit.prediction.sorting import LONGEST, By, folder_names

LABELS = ("cat", "dog")


def cat(path, probability=0.9):
    return Prediction(str(path), LABELS, (probability, 1 - probability))


@pytest.fixture
def photos(tmp_path):
    for folder, content in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jpg").write_bytes(content)
    return [tmp_path / folder / "1.jpg" for folder in "abc"]


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("by", ["link", "copy"])
def test_photographs_are_filed_once_and_nothing_is_replaced(photos, tmp_path, by):
    assert by in get_args(By)  # what is offered
    into = tmp_path / "sorted"
    for _ in range(2):  # the second time they are there already
        sorter = Sorter(into, LABELS, 0.5, by)
        filed = [sorter.file(photo, cat(photo)) for photo in photos]
        assert [path.name for path in filed] == ["1.jpg", "1-2.jpg", "1.jpg"]
        sorter.file(photos[1], cat(photos[1], 0.4))
        assert files_below(into) == ["cat/1-2.jpg", "cat/1.jpg", "unsure/1.jpg"]
        assert (into / "cat/1-2.jpg").read_bytes() == b"two"
    assert sorter.summary().endswith("3 cat, 1 unsure; 4 of them were there already")
    assert (into / "cat/1.jpg").samefile(photos[0]) == (by == "link")
    assert all(photo.is_file() for photo in photos)


def test_another_file_of_the_same_name_stays(photos, tmp_path):
    into = tmp_path / "sorted"
    (into / "cat/1-2.jpg").mkdir(parents=True)
    (into / "cat/1.jpg").write_bytes(b"somebody's")
    assert Sorter(into, LABELS, 0.5).file(photos[0], cat(photos[0])).name == "1-3.jpg"
    assert (into / "cat/1.jpg").read_bytes() == b"somebody's"


def test_a_link_is_of_the_file_that_a_link_leads_to(photos, tmp_path):
    shortcut = tmp_path / "shortcut.jpg"
    shortcut.symlink_to(photos[0])
    filed = Sorter(tmp_path / "sorted", LABELS, 0.5).file(shortcut, cat(shortcut))
    assert filed.name == "shortcut.jpg" and not filed.is_symlink() and filed.samefile(photos[0])


def test_without_links_it_is_a_copy(photos, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    into = tmp_path / "sorted"
    for photo in photos:
        Sorter(into, LABELS, 0.5).file(photo, cat(photo))
    assert files_below(into) == ["cat/1-2.jpg", "cat/1.jpg"]
    assert not (into / "cat/1.jpg").samefile(photos[0])


def test_many_namesakes_take_no_longer(tmp_path):
    """Each is compared with those of its size alone."""
    sorter = Sorter(tmp_path / "sorted", LABELS, 0.5)
    for i in range(50):
        photo = tmp_path / str(i) / "image.jpg"
        photo.parent.mkdir()
        photo.write_bytes(b"x" * (i + 1))
        sorter.file(photo, cat(photo))
    assert len(files_below(tmp_path / "sorted")) == 50
    (namesakes,) = sorter.namesakes.values()
    assert namesakes.count == 50 and set(map(len, namesakes.by_size.values())) == {1}


def test_a_full_disk_is_a_sentence(photos, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitkit.prediction.sorting.shutil.copyfile", full)
    with pytest.raises(OSError, match="No space left on device; what was filed stays"):
        Sorter(tmp_path / "sorted", LABELS, 0.5, "copy").file(photos[0], cat(photos[0]))
    assert files_below(tmp_path / "sorted") == []


def test_names_of_classes_lead_nowhere_else(tmp_path):
    labels = [
        "tench, Tinca tinca", "..", ".", "", " ", "../../etc", "/abs", "C:\\x", "NUL", "com1.txt",
        ".hidden", "a\nb\x1b[2J", "unsure", "Unsure", "unknown", "Cat", "cat", "e\u0301", "\u00e9", "é" * 300,
        "\udcff", "trailing. ", "~", "-rf", "x/../..",
    ]  # fmt: skip
    names = folder_names(labels)
    assert list(names) == labels
    assert names["tench, Tinca tinca"] == "tench, Tinca tinca"
    assert (
        len({name.casefold() for name in names.values()} | {"unsure", "unknown"}) == len(labels) + 2
    )
    for name in names.values():
        assert (tmp_path / name).resolve().parent == tmp_path
        assert name and name[0] != "." and name[-1] not in ". " and name.isprintable()
        assert len(name.encode()) <= LONGEST + 10 and not set(name) & set('/\\:*?"<>|')
        assert Path(name).stem.lower() not in ("nul", "com1", "unsure", "unknown")
    assert len(folder_names([f"class {i}" for i in range(10_000)])) == 10_000


def test_a_class_called_unknown_is_told_from_unknown_photographs(photos, tmp_path):
    sorter = Sorter(tmp_path / "sorted", ("unknown", "dog"), 0.5)
    assert sorter.renamed() == []
    known = Prediction(str(photos[0]), ("unknown", "dog"), (0.9, 0.1))
    assert sorter.file(photos[0], known).parent.name == "unknown-2"
    assert sorter.file(photos[1], replace(known, unknown=True)).parent.name == "unknown"
    assert sorter.renamed() == ["photographs of the class unknown are in unknown-2"]


def test_a_probability_beyond_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`sure` is 50; it is a probability"):
        Sorter(tmp_path, LABELS, 50)
