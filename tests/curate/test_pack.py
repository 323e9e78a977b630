"""Packing loses nothing silently and can be killed; a survey finds what is broken or there twice."""

import fcntl
import io
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
from pictures import encoded, photograph
from PIL import Image

from vitkit.cli import main
from vitkit.curate import Packing, identical_files, near_duplicates, pack, survey
from vitkit.curate.duplicates import appearance
from vitkit.data import open_image, open_parts, open_source, open_splits, subset, without


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(folder) -> str:
    """Two parts, two classes, JPEG and PNG, one broken image."""
    files = {
        f"train/{kind}/{i}.{'jpg' if i % 3 else 'png'}": 30 + i
        for kind in ("ant", "bee")
        for i in range(9)
    }
    return str(
        folder(files | {"test/ant/1.jpg": 77, "test/bee/2.png": 78, "train/bee/broken.jpg": 0})
    )


def contents(where: str) -> dict[str, set]:
    return {
        name: {(bytes(part[i][0]), part.labels[part[i][1]]) for i in range(len(part))}
        for name, part in open_parts(where)[0].items()
    }


@pytest.mark.parametrize("format", ["tar", "parquet"])
@pytest.mark.parametrize("workers", [0, 2])
def test_packed_images_keep_their_bytes_classes_and_parts(photos, tmp_path, format, workers):
    parts, _ = open_parts(photos)
    labels = parts["train"].labels
    total = pack(parts, tmp_path / "out", Packing(format, shard=4), workers)
    assert (total.written, total.shrunk) == (20, 0)
    (line,) = (tmp_path / "out/left-out.txt").read_text().splitlines()
    assert "broken.jpg is empty: 0 bytes" in line
    want = contents(photos)
    want["train"] = {row for row in want["train"] if row[0]}
    assert contents(str(tmp_path / "out")) == want
    splits = open_splits(str(tmp_path / "out"))
    assert splits.labels == labels and (len(splits.train), len(splits.test)) == (18, 2)
    again = tmp_path / "again"
    pack(parts, again, Packing(format, shard=4), 2 - workers)
    for file in sorted((tmp_path / "out").glob(f"*.{format}")):
        assert file.read_bytes() == (again / file.name).read_bytes()


def test_a_maximal_side_makes_the_larger_ones_smaller_and_leaves_the_others(photos, tmp_path):
    parts, _ = open_parts(photos)
    kept = {bytes(parts["train"][i][0]) for i in range(len(parts["train"]))}
    total = pack(parts, tmp_path / "out", Packing(side=38, shuffle=False), 0)
    source = open_source(str(tmp_path / "out"), split="train")
    pictures = [open_image(source[i][0], "x") for i in range(len(source))]
    assert all(max(picture.size) <= 38 for picture in pictures)
    small = [bytes(source[i][0]) in kept for i in range(len(source))]
    assert small == [i < 5 for i in (0, 1, 2, 3, 4, 5, 6, 7, 8)] * 2  # of 30 + i by 34 + i
    assert total.shrunk == 2 * 4 + 2 and {picture.kind for picture in pictures} == {"JPEG", "PNG"}
    before = open_image(parts["train"][8][0], "x").pixels()
    want = np.asarray(Image.fromarray(before).resize((38, 34), Image.Resampling.BICUBIC))
    assert np.abs(pictures[8].pixels().astype(int) - want).mean() < 3  # a JPEG of that


def test_arrays_become_files_and_the_order_is_shuffled(tmp_path):
    parts, _ = open_parts("digits")
    pack(parts, tmp_path / "out", Packing("parquet", shard=700), 0)
    source = open_source(str(tmp_path / "out"), split="train")
    assert len({*source.targets[:30].tolist()}) > 5 and not np.array_equal(
        source.targets, parts["train"].targets
    )
    name = json.loads(Path(tmp_path / "out/pack.json").read_text())["settings"]["format"]
    first = open_image(source[0][0], "x").pixels()
    assert name == "parquet" and any(
        np.array_equal(first[..., 0], parts["train"][i][0]) for i in range(len(source))
    )


def test_another_plan_in_the_same_directory_is_refused(photos, tmp_path):
    parts, _ = open_parts(photos)
    how = Packing(shard=4)
    pack(parts, tmp_path / "out", how, 0)
    with pytest.raises(ValueError, match="holds shards of other images or settings"):
        pack(parts, tmp_path / "out", replace(how, side=20), 0)
    with pytest.raises(
        ValueError, match="^s3://birds/out is an address, and results are written to a folder"
    ):
        pack(parts, Path("s3://birds/out"), how, 0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="full is not empty"):
        pack(parts, tmp_path / "full", how, 0)
    for change in ({"format": "zip"}, {"shard": 0}, {"quality": 101}):
        with pytest.raises(ValueError):
            Packing(**change)


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_is_told_by_the_image(photos, tmp_path, monkeypatch, workers):
    seen = []

    @contextmanager
    def watched(title, total, count):
        yield seen.append((title, total, count()))
        seen.append(count())

    monkeypatch.setattr(sys.modules[pack.__module__], "counted", watched)
    pack(open_parts(photos)[0], tmp_path / "out", Packing(shard=8), workers, "packing")
    assert seen == [("packing", 21, 0), 21]
    next((tmp_path / "out").glob("train-*.tar")).unlink()
    pack(open_parts(photos)[0], tmp_path / "out", Packing(shard=8), workers, "packing")
    assert seen[2] in [("packing", 8, 0), ("packing", 3, 0)] and seen[3] == seen[2][1]


@pytest.mark.parametrize("workers", [0, 2])
def test_examples_that_cannot_be_had_are_left_out(folder, tmp_path, workers):
    root = folder({f"{i}.png": 20 for i in range(8)})
    (root / "list.csv").write_text("path,label\n" + "".join(f"{i}.png,{i % 2}\n" for i in range(9)))
    images = [{"bytes": (root / f"{i}.png").read_bytes(), "path": None} for i in range(8)]
    pq.write_table(
        pa.table({"image": [*images, None], "label": [i % 2 for i in range(9)]}),
        tmp_path / "x.parquet",
    )
    for where, said in (
        (root / "list.csv", "8.png is missing"),
        (tmp_path / "x.parquet", "row 8 has no image"),
    ):
        out = tmp_path / where.stem
        assert pack(open_parts(str(where))[0], out, Packing(shard=3), workers).written == 8
        (line,) = (out / "left-out.txt").read_text().splitlines()
        assert said in line


def test_a_shard_that_was_lost_is_noticed_and_written_again(photos, tmp_path):
    parts, _ = open_parts(f"{photos}/train")
    out, how = tmp_path / "out", Packing(shard=4)
    pack(parts, out, how, 0)
    first, second, *_ = sorted(out.glob("*.tar"))
    before = first.read_bytes(), second.read_bytes()
    first.unlink()
    with pytest.raises(ValueError, match="out has 4 of 5 images files; number 00000 is missing"):
        open_splits(str(out))
    second.write_bytes(before[1][:-512])
    pack(parts, out, how, 0)
    assert (first.read_bytes(), second.read_bytes()) == before
    assert len(open_source(str(first))) == 3  # one that is asked for alone is all there is


@pytest.mark.parametrize("name", ["a\u2028b", "a\rb", "a\x0cb", "caf\udce9"])
def test_class_names_that_no_list_can_hold_are_refused_before_anything_is_written(
    folder, tmp_path, name
):
    parts, _ = open_parts(str(folder({f"{name}/1.png": 9, "b/1.png": 9})))
    with pytest.raises(
        ValueError, match="^the class '.*' has a line break or no UTF-8 text in its name"
    ):
        pack(parts, tmp_path / "out", Packing(), 0)
    assert not (tmp_path / "out").exists()


def test_what_a_full_disk_leaves_is_said_and_goes_on(photos, tmp_path):
    parts, _ = open_parts(photos)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; choose a directory"):
        pack(parts, tmp_path / "file", Packing(), 0)
    out, soft = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, soft[1]))
    try:
        with pytest.raises(
            OSError,
            match=r"out/train-00000-of-00001.tar could not be written: .*the same command goes on",
        ):
            pack(parts, out, Packing(), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
    assert not list(out.rglob("*.new")) and pack(parts, out, Packing(), 0).written == 20


def test_two_may_not_pack_into_the_same_directory(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[pack.__module__], "PATIENCE", 0.3)
    parts, _ = open_parts(photos)
    (tmp_path / "out/.packed").mkdir(parents=True)
    with (tmp_path / "out/.packed/lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(
            ValueError, match="another process is packing into .*out; wait for its end"
        ):
            pack(parts, tmp_path / "out", Packing(), 0)
    assert pack(parts, tmp_path / "out", Packing(), 0).written == 20


@pytest.mark.parametrize("kill", [os.killpg, os.kill])  # with its worker, or without
def test_killed_at_any_moment_packing_goes_on(folder, tmp_path, kill):
    files = {f"{kind}/{i}.png": 60 for kind in ("ant", "bee") for i in range(150)}
    where, out = str(folder(files)), tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "vitkit",
        "data",
        "pack",
        where,
        str(out),
        "--shard",
        "10",
        "--workers",
        "1",
    ]
    whole = tmp_path / "whole"
    pack(open_parts(where)[0], whole, Packing(shard=10), 0)
    job = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list(out.glob("*.tar"))) < 5 and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    kill(job.pid, signal.SIGKILL)
    job.wait()
    assert 0 < len(list(out.glob("*.tar"))) <= 30
    (out / "images-00029-of-00030.tar.0a1b.new").write_bytes(b"half of it")
    kept = {
        file: file.stat().st_mtime_ns
        for file in out.glob("*.tar")
        if (out / f".packed/{file.stem}.json").exists()
    }
    assert main(command[3:]) == 0
    for file in whole.glob("*.tar"):
        assert (out / file.name).read_bytes() == file.read_bytes()
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items()) and len(kept) >= 3
    assert not list(out.rglob("*.new"))


def test_interrupted_packing_stops_at_once_and_says_that_it_goes_on(folder, tmp_path):
    where, out = (
        str(folder({f"{kind}/{i}.png": 300 for kind in ("ant", "bee") for i in range(60)})),
        tmp_path / "out",
    )
    (tmp_path / "slow.py").write_text("""if True:
        import signal, sys, time
        from vitkit.cli import main
        from vitkit.data.stores import Files

        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell started in the background
        read, Files.read = Files.read, lambda store, row: (time.sleep(1), read(store, row))[1]
        sys.exit(main(sys.argv[1:]))
    """)
    command = [
        sys.executable,
        str(tmp_path / "slow.py"),
        "data",
        "pack",
        where,
        str(out),
        "--workers",
        "2",
        "--shard",
        "60",
    ]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        deadline = time.monotonic() + 120
        while (
            len(list(out.glob("*.new"))) < 2 and job.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        assert len(list(out.glob("*.new"))) == 2
        time.sleep(0.2)  # the main process waits for them by now
        began = time.monotonic()
        os.killpg(job.pid, signal.SIGINT)
        assert (
            "stopped; the same command goes on" in job.communicate(timeout=60)[1]
            and job.returncode == 130
        )
        assert time.monotonic() - began < 5  # each worker would be waited for as long


# Surveys


def again(pixels: np.ndarray, kind: str = "JPEG", size=None, shift: float = 0, **settings) -> bytes:
    """The same picture, encoded again, maybe resized and in other light."""
    image = Image.fromarray(np.clip(pixels.astype(float) + shift, 0, 255).astype(np.uint8))
    file = io.BytesIO()
    image.resize(size or image.size).save(file, kind, **settings)
    return file.getvalue()


@pytest.fixture
def doubles(tmp_path) -> Path:
    """40 pictures to train on, 10 to test, of which three are the same, or nearly; and two broken
    ones."""
    root = tmp_path / "photos"
    for part in ("train", "test"):
        for kind in ("ant", "bee"):
            (root / part / kind).mkdir(parents=True)
    pictures = [photograph(64, 80, i) for i in range(50)]
    for i in range(40):
        (root / f"train/{'ant' if i % 4 else 'bee'}/{i}.jpg").write_bytes(
            encoded(pictures[i], quality=92)
        )
    for i in range(40, 47):
        (root / f"test/ant/{i}.jpg").write_bytes(encoded(pictures[i]))
    (root / "test/bee/same.jpg").write_bytes((root / "train/ant/3.jpg").read_bytes())
    (root / "test/bee/smaller.png").write_bytes(again(pictures[5], "PNG", (50, 40)))
    (root / "test/bee/lighter.jpg").write_bytes(again(pictures[8], quality=60, shift=12))
    (root / "train/bee/copy.jpg").write_bytes((root / "train/ant/1.jpg").read_bytes())
    (root / "train/bee/broken.jpg").write_bytes(encoded(pictures[0])[:200])
    (root / "test/bee/empty.jpg").write_bytes(b"")
    return root


def test_a_survey_counts_what_is_there(doubles):
    parts, _ = open_parts(str(doubles))
    found = {name: survey(part, 2) for name, part in parts.items()}
    train, test = found["train"], found["test"]
    assert (len(train.bad), len(test.bad)) == (1, 1) and "broken.jpg" in next(
        iter(train.bad.values())
    )
    assert train.formats == {"JPEG": 41} and test.formats == {"JPEG": 9, "PNG": 1}
    assert (train.sizes[train.good] == (64, 80)).all() and train.bytes[train.good].min() > 300
    ((one, other),) = identical_files(train)
    assert {Path(train.source.name(i)).name for i in (one, other)} == {"1.jpg", "copy.jpg"}
    pairs = near_duplicates(train, test)
    names = {
        (Path(train.source.name(t.first)).name, Path(test.source.name(t.second)).name): t.bits
        for t in pairs
    }
    assert names.keys() == {
        ("3.jpg", "same.jpg"),
        ("5.jpg", "smaller.png"),
        ("8.jpg", "lighter.jpg"),
    }
    assert names["3.jpg", "same.jpg"] == -1 and names["5.jpg", "smaller.png"] >= 0


def test_duplicates_are_listed_and_left_out_of_training(doubles, tmp_path, capsys):
    drop, sheet = tmp_path / "drop.txt", tmp_path / "pairs.png"
    assert (
        main(
            [
                "data",
                "stats",
                str(doubles),
                "--exclude",
                str(drop),
                "--sheet",
                str(sheet),
                "--workers",
                "0",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert (
        "train and test: files in both: 1; others of train that look like one of test: 2" in out
        and "broken, in train: " in out
    )
    assert "warning: of another class than what they are like: 2; a label is wrong" in out
    assert min(open_image(sheet.read_bytes(), "sheet").size) > 100
    train = open_parts(str(doubles))[0]["train"]
    left = without(train, drop)
    gone = {train.name(i) for i in range(len(train))} - {left.name(i) for i in range(len(left))}
    assert {Path(name).name for name in gone} == {"3.jpg", "5.jpg", "8.jpg"}
    assert (
        main(["data", "stats", str(doubles), "--test", str(doubles), "--json", "--workers", "0"])
        == 0
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [pair["same"] for pair in found["pairs"]] == [1, 1] and found["parts"]["train"][
        "same file, other class"
    ] == 1
    drop.write_text("photos/elsewhere.jpg\twhy\n")
    with pytest.raises(
        ValueError,
        match="lists 1 images that are not in the training part, the first is 'photos/else",
    ):
        without(train, drop)


def test_the_hash_is_stable_under_scale_and_light_but_tells_pictures_apart():
    pictures = [photograph(64, 80, i) for i in range(30)]
    hashes = np.array([appearance(pixels).hash for pixels in pictures])
    for pixels, code in zip(pictures, hashes, strict=True):
        changed = appearance(
            open_image(again(pixels, size=(60, 48), shift=-10, quality=70), "x").pixels()
        )
        assert np.bitwise_count(changed.hash ^ code) <= 6
    apart = np.bitwise_count(hashes[:, None] ^ hashes[None])[~np.eye(30, dtype=bool)]
    assert apart.min() > 10


def test_known_near_duplicates_of_cifar_10_are_found(shared):
    """Rows that were looked at: a car twice in other frames, a deer in other light; among 100 and
    150 others."""
    train, test = (
        open_source(str(shared(f"data/cifar10-{part}.parquet"))) for part in ("train", "test")
    )
    rows, twins_of = [102, 770, 851], [9061, 2703, 7117]
    first, second = subset(train, [*rows, *range(100)]), subset(test, [*twins_of, *range(150)])
    assert [
        (pair.first, pair.second) for pair in near_duplicates(survey(first, 0), survey(second, 0))
    ] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
