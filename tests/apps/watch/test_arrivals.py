"""Names that come while others are classified: lines of a pipe, files of a folder."""

import os
import shutil
import time

import pytest

from vitkit.prediction import arrivals
from vitkit.prediction import batches as module
from vitkit.prediction.batches import names_from
from vitkit.prediction.items import files_of
from vitkit.system.console.messages import heard_by


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "POLL", 0.02)
    monkeypatch.setattr(module, "MOMENT", 0.005)


def coming(names, seconds=5.0):
    """The next list that is not empty; None if there is none for so long."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        some = next(names)
        if some:
            return some
    return None


def test_lines_come_at_once_and_all_of_them():
    reading, writing = os.pipe()
    names = names_from(reading, batch=4)
    os.write(writing, b"a.jpg\n\nb c.jpg\r\nhalf")
    assert coming(names) == ["a.jpg", "b c.jpg"]
    assert next(names) == []
    os.write(writing, b" a name\n" + b"".join(b"%d\n" % i for i in range(9)) + b"\xff.jpg")
    os.close(writing)
    rest = list(names)
    assert max(map(len, rest)) == 4
    expected = ["half a name", *map(str, range(9)), os.fsdecode(b"\xff.jpg")]
    assert [name for some in rest for name in some] == expected
    os.close(reading)


def test_files_come_when_they_are_whole(tmp_path, quick):
    (tmp_path / "there.jpg").write_bytes(b"1")
    (tmp_path / "notes.txt").write_bytes(b"1")
    names = arrivals(str(tmp_path), batch=2)
    assert coming(names) == [str(tmp_path / "there.jpg")]

    # While it grows it waits
    growing = tmp_path / "inner" / "new.png"
    growing.parent.mkdir()
    with growing.open("wb") as file:
        for _ in range(5):
            file.write(b"x" * 1000)
            file.flush()
            assert coming(names, 0.015) is None
    assert coming(names) == [str(growing)]
    assert coming(names, 0.2) is None

    # It comes again when it has changed, and others at most two at a time
    growing.write_bytes(b"other")
    assert coming(names) == [str(growing)]
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(b"1")
    assert sorted([*coming(names), *coming(names)]) == [
        str(tmp_path / f"{i}.jpg") for i in range(3)
    ]


def test_what_is_written_there_does_not_come(tmp_path, quick):
    (tmp_path / "sorted" / "cat").mkdir(parents=True)
    (tmp_path / "sorted" / "cat" / "1.jpg").write_bytes(b"1")
    (tmp_path / "sorted2").mkdir()
    (tmp_path / "sorted2" / "2.jpg").write_bytes(b"1")
    names = arrivals(str(tmp_path), 2, [tmp_path / "sorted"])
    assert coming(names) == [str(tmp_path / "sorted2" / "2.jpg")]
    assert coming(names, 0.2) is None


def test_an_empty_file_waits_for_its_writer(tmp_path, quick, monkeypatch):
    (tmp_path / "a.jpg").touch()
    names = arrivals(str(tmp_path), 2)
    assert coming(names, 0.2) is None
    monkeypatch.setattr(module, "EMPTY", 0)
    assert coming(names) == [str(tmp_path / "a.jpg")]


def test_a_folder_that_goes_is_a_sentence(tmp_path, quick):
    folder = tmp_path / "inbox"
    (folder / "inner").mkdir(parents=True)
    names = arrivals(str(folder), 2)
    assert coming(names, 0.1) is None
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match="is not a folder any more"):
        coming(names)


def test_system_folders_are_left_out_and_counted(tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    for name in ("cat/0.jpg", "cat/@eaDir/0.jpg/THUMB.jpg", "#recycle/1.jpg", "cat/notes.txt"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    told = []
    with heard_by(told.append):
        assert files_of("photos") == ["photos/cat/0.jpg"]
        assert files_of("photos/**/*.jpg") == ["photos/cat/0.jpg"]
        assert coming(arrivals("photos", 4)) == ["photos/cat/0.jpg"]
        assert files_of("photos/#recycle/*.jpg") == ["photos/#recycle/1.jpg"]  # it is asked for
    left_out = "photos: left out: 1 .txt file, 2 system folders"
    pattern = "photos/**/*.jpg: left out: 2 images in system folders"
    assert told == [left_out, pattern, left_out]
