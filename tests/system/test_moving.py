"""Files and folders are moved to other file systems too, and are never lost or there half."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from vitkit.apps.studies.protocol import _rename_if_new
from vitkit.cli.entry import main
from vitkit.curation import Move, move
from vitkit.system.storage import moving
from vitkit.system.storage.moving import check_moves, move_file, move_folder


def far(path) -> bool:
    return "far" in Path(path).parts


@pytest.fixture
def mounted(monkeypatch):
    """Folders called "far" are on a file system of their own: nothing is renamed or linked between it and
    another."""
    rename = os.rename

    def within_one(before, after, **others):
        if far(before) != far(after):
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(before))
        rename(before, after, **others)

    def link_within_one(before, after, **others):
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(before))

    monkeypatch.setattr(os, "rename", within_one)
    monkeypatch.setattr(os, "replace", within_one)
    monkeypatch.setattr(os, "link", link_within_one)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def pair(tmp_path):
    """A file in one folder, and its new path in another, which is far."""
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    (tmp_path / "near/a.jpg").write_text("a")
    os.utime(tmp_path / "near/a.jpg", (1, 1))
    return tmp_path / "near/a.jpg", tmp_path / "far/a.jpg"


def test_a_file_is_moved_to_another_file_system(pair, mounted, tmp_path):
    before, after = pair
    move_file(before, after)
    assert contents(tmp_path) == {"far/a.jpg": "a"} and after.stat().st_mtime == 1
    move_file(after, before)
    assert contents(tmp_path) == {"near/a.jpg": "a"}


def test_a_file_is_moved_to_another_file_system_of_this_machine(tmp_path):
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    with tempfile.TemporaryDirectory(dir=memory) as other:
        (tmp_path / "a.jpg").write_text("a")
        move_file(tmp_path / "a.jpg", Path(other, "a.jpg"))
        assert contents(Path(other)) == {"a.jpg": "a"} and not contents(tmp_path)
        (tmp_path / "model").mkdir()
        (tmp_path / "model/weights").write_text("w")
        move_folder(tmp_path / "model", Path(other, "earlier"))
        assert contents(Path(other)) == {"a.jpg": "a", "earlier/weights": "w"}
        assert not (tmp_path / "model").exists()


def test_nothing_is_replaced_and_a_link_stays_a_link(pair, mounted, tmp_path):
    before, after = pair
    after.write_text("another")
    with pytest.raises(OSError, match="is there already"):
        move_file(before, after)
    assert contents(tmp_path) == {"near/a.jpg": "a", "far/a.jpg": "another"}
    link = tmp_path / "near/link.jpg"
    link.symlink_to(before)
    move_file(link, tmp_path / "far/link.jpg")
    assert (tmp_path / "far/link.jpg").is_symlink() and not link.is_symlink()


@pytest.mark.parametrize("fails", ["copyfile", "sync", "unlink"])
def test_a_move_that_fails_leaves_the_file_where_it_was(
    pair, mounted, monkeypatch, tmp_path, fails
):
    before, after = pair

    def refuse(path, *_, **__):
        if fails != "unlink" or path == before:
            raise OSError(errno.EIO, "Input/output error")

    if fails == "unlink":
        unlink = Path.unlink
        monkeypatch.setattr(
            Path, "unlink", lambda path, **named: refuse(path) or unlink(path, **named)
        )
    elif fails == "sync":
        monkeypatch.setattr(moving, "sync", refuse)
    else:
        monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(OSError, match="Input/output"):
        move_file(before, after)
    assert contents(tmp_path) == {"near/a.jpg": "a"}


def test_what_would_fail_is_said_before_the_first_move(pair, monkeypatch, tmp_path):
    before, after = pair
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "far")
    with pytest.raises(OSError, match="far is no folder that you may write to"):
        move([Move(before, tmp_path / "near/b.jpg"), Move(before, after)])
    assert contents(tmp_path) == {"near/a.jpg": "a"}


def test_room_for_copies_is_asked_for_before_the_first_move(pair, monkeypatch):
    lstat = Path.lstat

    def elsewhere(path):
        values = list(lstat(path))
        values[2] += 1  # st_dev
        return os.stat_result(values)

    monkeypatch.setattr(Path, "lstat", elsewhere)
    check_moves([pair])
    usage = shutil.disk_usage(pair[0].parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OSError, match=r"1 bytes on the file system of .*far, which has 1,000 left"):
        check_moves([pair])


def test_a_move_that_stops_half_way_says_how_many_were_moved(
    mounted, monkeypatch, tmp_path, capsys
):
    """And the same command goes on."""
    photos = tmp_path / "far"  # a mounted folder: what is left out goes beside it, to another
    (photos / "ant").mkdir(parents=True)
    lines = []
    for name in "abc":
        path = photos / "ant" / f"{name}.jpg"
        path.write_text(name)
        lines.append(f"{path}\tleave out\t\tant\ttrain")
    (tmp_path / "list.txt").write_text("\n".join(lines))
    words = ["data", "review", str(photos), "--apply", str(tmp_path / "list.txt"), "--yes"]
    copy = shutil.copyfile

    def fail_once(before, after, **others):
        if before.name == "b.jpg":
            raise OSError(errno.EIO, "Input/output error")
        return copy(before, after, **others)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", fail_once)
        assert main(words) == 1
    said = capsys.readouterr().err
    assert "Input/output error; 1 of 3 files were moved before it" in said
    assert "the same command moves the others" in said
    assert main(words) == 0 and "moved 2 files" in capsys.readouterr().out
    left_out = {f"ant/{name}.jpg": name for name in "abc"}
    assert contents(tmp_path / "far-left-out") == left_out and not contents(photos)
    assert main([*words, "--undo"]) == 0
    assert contents(photos) == left_out and not contents(tmp_path / "far-left-out")


def test_a_folder_is_moved_where_it_cannot_be_renamed(mounted, tmp_path):
    """As a model in the lower layer of a container's image, which a run keeps as model.earlier."""
    (tmp_path / "far/model").mkdir(parents=True)
    (tmp_path / "far/model/weights").write_text("w")
    move_folder(tmp_path / "far/model", tmp_path / "model.earlier")
    assert contents(tmp_path) == {"model.earlier/weights": "w"}
    assert not (tmp_path / "far/model").exists()


def test_a_record_is_put_once_where_there_are_no_links(mounted, tmp_path):
    for content, is_first in (("a", True), ("b", False)):
        (tmp_path / "own").write_text(content)
        assert _rename_if_new(tmp_path / "own", tmp_path / "study.json") == is_first
    assert contents(tmp_path) == {"study.json": "a"}
