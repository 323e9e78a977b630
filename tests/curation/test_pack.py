"""Packing loses nothing silently and can be killed."""

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from processes import Forked, locked_elsewhere

from vitkit.cli.entry import main
from vitkit.curation.packing import Jobs, Packing, pack_shards
from vitkit.data import open_image, open_parts, open_source, open_splits
from vitkit.system.errors import Unavailable


@pytest.fixture
def photos(folder) -> str:
    """Two parts, two classes, JPEG and PNG, one broken image."""
    files = {
        f"train/{kind}/{i}.{'jpg' if i % 3 else 'png'}": 30 + i
        for kind in ("ant", "bee")
        for i in range(9)
    }
    files |= {"test/ant/1.jpg": 77, "test/bee/2.png": 78, "train/bee/broken.jpg": 0}
    return str(folder(files))


def contents(where: str) -> dict[str, set]:
    """The bytes and the class name of every image, by part."""
    images = {}
    for name, part in open_parts(where).sources.items():
        images[name] = {(bytes(part[i][0]), part.answer(i)) for i in range(len(part))}
    return images


@pytest.mark.parametrize("format", ["tar", "parquet"])
@pytest.mark.parametrize("workers", [0, 2])
def test_packed_images_keep_their_bytes_classes_and_parts(photos, tmp_path, format, workers):
    parts = open_parts(photos).sources
    labels = parts["train"].labels
    total = pack_shards(parts, tmp_path / "out", Packing(format, shard=4), workers)
    assert (total.written, total.shrunk) == (20, 0)
    (line,) = (tmp_path / "out/left-out.txt").read_text().splitlines()
    assert "broken.jpg is empty: 0 bytes" in line
    expected = contents(photos)
    expected["train"] = {(data, label) for data, label in expected["train"] if data}
    assert contents(str(tmp_path / "out")) == expected
    splits = open_splits(str(tmp_path / "out"))
    assert splits.labels == labels and (len(splits.train), len(splits.test)) == (18, 2)


def test_a_maximal_side_makes_the_larger_ones_smaller_and_leaves_the_others(photos, tmp_path):
    parts = open_parts(photos).sources
    originals = {bytes(parts["train"][i][0]) for i in range(len(parts["train"]))}
    total = pack_shards(parts, tmp_path / "out", Packing(side=38, shuffle=False), 0)
    source = open_source(str(tmp_path / "out"), split="train")
    pictures = [open_image(source[i][0], "x") for i in range(len(source))]
    assert all(max(picture.size) <= 38 for picture in pictures)
    unchanged = [bytes(source[i][0]) in originals for i in range(len(source))]
    assert unchanged == [i < 5 for i in range(9)] * 2  # of each class 30 + i by 34 + i pixels
    assert total.shrunk == 2 * 4 + 2  # two of them in the test part
    assert {picture.kind for picture in pictures} == {"JPEG", "PNG"}
    before = open_image(parts["train"][8][0], "x").pixels()
    want = np.asarray(Image.fromarray(before).resize((38, 34), Image.Resampling.BICUBIC))
    assert np.abs(pictures[8].pixels().astype(int) - want).mean() < 3  # a JPEG of that


def test_arrays_become_files_and_the_order_is_shuffled(tmp_path):
    parts = open_parts("digits").sources
    pack_shards(parts, tmp_path / "out", Packing("parquet", shard=700), 0)
    source = open_source(str(tmp_path / "out"), split="train")
    assert not np.array_equal(source.targets, parts["train"].targets)
    first = open_image(source[0][0], "x").pixels()[..., 0]
    originals = {parts["train"][i][0].tobytes() for i in range(len(source))}
    assert first.tobytes() in originals


def test_another_plan_in_the_same_directory_is_refused(photos, tmp_path):
    parts = open_parts(photos).sources
    how = Packing(shard=4)
    pack_shards(parts, tmp_path / "out", how, 0)
    plan = json.loads((tmp_path / "out" / "pack.json").read_text())
    assert plan.keys() == {"settings", "fingerprint"}  # those of earlier versions are compared
    with pytest.raises(ValueError, match="holds shards of other images or settings"):
        pack_shards(parts, tmp_path / "out", replace(how, side=20), 0)
    with pytest.raises(ValueError, match="^s3://birds/out is an address, and results are written"):
        pack_shards(parts, Path("s3://birds/out"), how, 0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="full is not empty"):
        pack_shards(parts, tmp_path / "full", how, 0)
    for change in ({"format": "zip"}, {"shard": 0}, {"quality": 101}):
        with pytest.raises(ValueError):
            Packing(**change)


def test_a_shard_that_vanishes_meanwhile_is_a_sentence(photos, tmp_path, monkeypatch):
    write_shard = Jobs.write_shard

    def write_and_lose(jobs, job):
        write_shard(jobs, job)
        if job.number == 1:
            jobs.shard_path(jobs.all[0]).unlink()

    monkeypatch.setattr(Jobs, "write_shard", write_and_lose)
    with pytest.raises(Unavailable, match="00000-of-.*was changed or deleted while"):
        pack_shards(open_parts(photos).sources, tmp_path / "out", Packing(shard=4), 0)
    monkeypatch.undo()
    total = pack_shards(open_parts(photos).sources, tmp_path / "out", Packing(shard=4), 0)
    assert total.written == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_is_told_by_the_image(photos, tmp_path, monkeypatch, workers):
    seen = []

    @contextmanager
    def watched(title, total, count):
        yield seen.append((title, total, count()))
        seen.append(count())

    monkeypatch.setattr(sys.modules[pack_shards.__module__], "counted", watched)
    pack_shards(open_parts(photos).sources, tmp_path / "out", Packing(shard=8), workers, "packing")
    assert seen == [("packing", 21, 0), 21]
    next((tmp_path / "out").glob("train-*.tar")).unlink()
    pack_shards(open_parts(photos).sources, tmp_path / "out", Packing(shard=8), workers, "packing")
    assert seen[2] in [("packing", 8, 0), ("packing", 3, 0)] and seen[3] == seen[2][1]


@pytest.mark.parametrize("workers", [0, 2])
def test_examples_that_cannot_be_had_are_left_out(folder, tmp_path, workers):
    root = folder({f"{i}.png": 20 for i in range(8)})
    (root / "list.csv").write_text("path,label\n" + "".join(f"{i}.png,{i % 2}\n" for i in range(9)))
    images = [{"bytes": (root / f"{i}.png").read_bytes(), "path": None} for i in range(8)]
    table = pa.table({"image": [*images, None], "label": [i % 2 for i in range(9)]})
    pq.write_table(table, tmp_path / "x.parquet")
    for where, reason in (
        (root / "list.csv", "8.png is missing"),
        (tmp_path / "x.parquet", "row 8 has no image"),
    ):
        out = tmp_path / where.stem
        assert (
            pack_shards(open_parts(str(where)).sources, out, Packing(shard=3), workers).written == 8
        )
        (line,) = (out / "left-out.txt").read_text().splitlines()
        assert reason in line


def test_a_shard_that_was_lost_is_noticed_and_written_again(photos, tmp_path):
    parts = open_parts(f"{photos}/train").sources
    out = tmp_path / "out"
    how = Packing(shard=4)
    pack_shards(parts, out, how, 0)
    first, second, *_ = sorted(out.glob("*.tar"))
    before = (first.read_bytes(), second.read_bytes())
    first.unlink()
    with pytest.raises(ValueError, match="out has 4 of 5 images files; number 00000 is missing"):
        open_splits(str(out))
    second.write_bytes(before[1][:-512])
    pack_shards(parts, out, how, 0)
    assert (first.read_bytes(), second.read_bytes()) == before
    assert len(open_source(str(first))) == 3  # one that is asked for alone is all there is


def test_labels_that_are_unknown_are_refused_before_anything_is_written(folder, tmp_path):
    table = folder({"0.png": 9, "1.png": 9}) / "list.csv"
    table.write_text("image,cat,dog\n0.png,1,\n1.png,1,1\n")
    with pytest.raises(ValueError, match="some labels are unknown, which shards cannot say"):
        pack_shards(open_parts(str(table)).sources, tmp_path / "out", Packing(), 0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a\u2028b", "a\rb", "a\x0cb", "caf\udce9"])
def test_class_names_that_no_list_can_hold_are_refused_before_anything_is_written(
    folder, tmp_path, name
):
    parts = open_parts(str(folder({f"{name}/1.png": 9, "b/1.png": 9}))).sources
    with pytest.raises(ValueError, match="^the class '.*' has a line break or no UTF-8 text"):
        pack_shards(parts, tmp_path / "out", Packing(), 0)
    assert not (tmp_path / "out").exists()


def test_what_a_full_disk_leaves_is_said_and_goes_on(photos, tmp_path):
    parts = open_parts(photos).sources
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; choose a directory"):
        pack_shards(parts, tmp_path / "file", Packing(), 0)
    out = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    message = r"out/train-00000-of-00001.tar could not be written: .*the same command to continue"
    try:
        with pytest.raises(OSError, match=message):
            pack_shards(parts, out, Packing(), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(out.rglob("*.new"))
    assert pack_shards(parts, out, Packing(), 0).written == 20


def test_two_may_not_pack_into_the_same_directory(photos, tmp_path):
    parts = open_parts(photos).sources
    (tmp_path / "out/.packed").mkdir(parents=True)
    with (
        locked_elsewhere(tmp_path / "out/.packed/lock"),
        pytest.raises(ValueError, match="another process is packing into .*out; wait for"),
    ):
        pack_shards(parts, tmp_path / "out", Packing(), 0)
    assert pack_shards(parts, tmp_path / "out", Packing(), 0).written == 20


def test_a_file_system_without_locks_is_packed_into(photos, tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    assert pack_shards(open_parts(photos).sources, tmp_path / "out", Packing(), 0).written == 20


# With its worker, or without
@pytest.mark.parametrize("kill", [os.killpg, pytest.param(os.kill, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_killed_at_any_moment_packing_goes_on(folder, tmp_path, kill):
    files = {f"{kind}/{i}.png": 24 for kind in ("ant", "bee") for i in range(150)}
    where = str(folder(files))
    out = tmp_path / "out"
    words = ["data", "pack", where, str(out), *"--shard 10 --workers 1".split()]
    whole = tmp_path / "whole"
    pack_shards(open_parts(where).sources, whole, Packing(shard=10), 0)
    command = [sys.executable, "-m", "vitkit", *words]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    job = Forked(command, **quiet, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(out.glob("*.tar"))) < 5 and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    kill(job.pid, signal.SIGKILL)
    job.wait()
    assert 0 < len(list(out.glob("*.tar"))) <= 30
    (out / "images-00029-of-00030.tar.0a1b0a1b.new").write_bytes(b"half of it")
    finished = [file for file in out.glob("*.tar") if (out / f".packed/{file.stem}.json").exists()]
    times = [file.stat().st_mtime_ns for file in finished]
    assert main(words) == 0
    for file in whole.glob("*.tar"):
        assert (out / file.name).read_bytes() == file.read_bytes()
    assert len(finished) >= 3
    assert [file.stat().st_mtime_ns for file in finished] == times  # not written again
    assert not list(out.rglob("*.new"))


@pytest.mark.slow
def test_interrupted_packing_stops_at_once_and_says_that_it_goes_on(folder, tmp_path):
    where = str(folder({f"{kind}/{i}.png": 300 for kind in ("ant", "bee") for i in range(60)}))
    out = tmp_path / "out"
    (tmp_path / "slow.py").write_text("""if True:
        import signal, sys, time
        from vitkit.cli import main
        from vitkit.data.sources.stores import Files

        # a shell makes what it starts in the background ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        read, Files.read = Files.read, lambda store, row: (time.sleep(1), read(store, row))[1]
        sys.exit(main(sys.argv[1:]))
    """)
    words = ["data", "pack", where, str(out), *"--workers 2 --shard 60".split()]
    command = [sys.executable, str(tmp_path / "slow.py"), *words]
    with Forked(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as job:
        deadline = time.monotonic() + 120
        while (
            len(list(out.glob("*.new"))) < 2 and job.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        assert len(list(out.glob("*.new"))) == 2
        time.sleep(0.2)  # the main process waits for them by now
        began = time.monotonic()
        os.killpg(job.pid, signal.SIGINT)
        _, err = job.communicate(timeout=60)
        assert "stopped; run the same command to continue" in err and job.returncode == 130
        assert time.monotonic() - began < 5  # each worker would be waited for as long
