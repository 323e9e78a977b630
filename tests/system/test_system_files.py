"""What a file that a command writes may replace: what vitkit wrote, and nothing of anybody else's."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest

from vitkit.inspection import Tile, contact_sheet, write_page
from vitkit.system.errors import WorkerDied
from vitkit.system.storage.files import (
    Record,
    check_replaceable,
    check_types,
    mark_of,
    parse_json,
    remove_unfinished,
    whole,
    whole_files,
    write_where_said,
    write_whole,
)


def sheet(path):
    contact_sheet([Tile(np.zeros((4, 4, 3), np.uint8), "a")], path)


def page(path):
    write_page(path, "Title", [])


def text(path):
    write_where_said(path, f"# {mark_of(b'content')}\n".encode() + b"content")


@pytest.mark.parametrize("write", [sheet, page, text])
def test_what_vitkit_wrote_is_replaced_and_nothing_else(write, tmp_path):
    path = tmp_path / "new" / "folder" / "file.png"
    for _ in range(2):
        write(path)
    path.write_bytes(b"mine")
    with pytest.raises(ValueError, match="is not as vitkit wrote it, so it is not replaced"):
        write(path)
    assert path.read_bytes() == b"mine"
    assert [file.name for file in path.parent.iterdir()] == ["file.png"]


def test_an_edited_text_is_somebodys(tmp_path):
    path = tmp_path / "list.txt"
    text(path)
    path.write_text(path.read_text() + "more")
    with pytest.raises(ValueError, match="is not as vitkit wrote it"):
        text(path)


def test_an_empty_file_is_nobodys_and_a_link_is_written_through(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    text(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty").read_bytes().endswith(b"content")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("mine")
    refused = {
        tmp_path: "is a directory",
        tmp_path / "pipe": "is no ordinary file",
        tmp_path / "file" / "below": "is no folder that you may write to",
        "s3://bucket/list.txt": "is an address",
    }
    for path, sentence in refused.items():
        with pytest.raises(ValueError, match=sentence):
            check_replaceable(type(tmp_path)(path))


def test_only_what_was_left_unfinished_is_removed(tmp_path):
    for name in ("shard.tar.0123abcd.new", "photographs.new", "list.new"):
        (tmp_path / name).touch()
    for name in (".0123abcd.new", ".holidays.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    remove_unfinished(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"photographs.new", "list.new", ".holidays.new"}


def test_files_appear_together_in_a_folder_that_others_write_to(tmp_path):
    """One block ends, one fails, and neither touches the other's unfinished files."""
    (tmp_path / "mine").write_text("mine")
    with whole_files(tmp_path, last="model") as outer:
        (outer / "model").write_text("new")
        (outer / "data").write_text("new")
        with pytest.raises(KeyError), whole_files(tmp_path) as inner:
            (inner / "model").write_text("half")
            raise KeyError
        assert not (tmp_path / "model").exists() and (outer / "model").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "mine", "model"]
    assert (tmp_path / "model").read_text() == "new"


def test_a_full_disk_names_the_file_that_was_to_be_written(tmp_path, monkeypatch):
    def raised(write):
        with pytest.raises(OSError, match="No space left") as caught:
            write()
        return str(caught.value.filename)

    def into_a_folder(error, **named):
        with whole_files(tmp_path / "model", **named):
            raise error

    full = OSError(errno.ENOSPC, "No space left on device")

    def into_a_file():
        with whole(tmp_path / "page.html"):
            raise OSError(errno.ENOSPC, "No space left on device")

    assert raised(into_a_file) == str(tmp_path / "page.html")
    assert raised(lambda: into_a_folder(full, named=tmp_path / "x.onnx")) == str(
        tmp_path / "x.onnx"
    )

    # What a library in C++ says of a full disk; on any other disk it is another error
    vague = RuntimeError("iostream error")
    with pytest.raises(RuntimeError, match="iostream"):
        into_a_folder(vague)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(WorkerDied, match="was killed"):  # which is a RuntimeError, too
        into_a_folder(WorkerDied("a worker was killed"))
    assert raised(lambda: into_a_folder(vague)) == str(tmp_path / "model")


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Else a loss of power could leave a name with nothing behind it."""
    path = tmp_path / "file"
    path.write_bytes(b"earlier")
    synced = []

    def fsync(handle):
        synced.append((os.pread(handle, 9, 0), path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, b"later")
    assert synced == [(b"later", b"earlier")] and path.read_bytes() == b"later"


def test_json_raises_value_errors_alone():
    for text in (b"[" * 100_000, '{"a":' * 100_000, b"\xff", "", "{", "9" * 10_000):
        with pytest.raises(ValueError):
            parse_json(text)
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}


def test_what_a_record_lacks_is_a_sentence():
    record = parse_json('{"data": {"source": "photos"}}', Record)
    assert record["data"]["source"] == "photos" and record.get("gone") is None
    with pytest.raises(ValueError, match="'hold_out' is missing in what was written down"):
        record["data"]["hold_out"]


@pytest.mark.parametrize("value", ["x", True, [1], {}, 1.5])
def test_a_value_of_another_type_is_named(value):
    check_types({"data": {"count": 3}, "more": None}, {"data.count": int, "more": str, "gone": str})
    with pytest.raises(ValueError, match=r"^data\.count is .*, which is not what was written$"):
        check_types({"data": {"count": value}}, {"data.count": int})
