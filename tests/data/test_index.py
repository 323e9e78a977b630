"""The index of tar shards: made once for all ranks, or found beside the shard, which is not trusted."""

import json
import os
import shutil
import time

import counted
import numpy as np
import pytest
from counted import SHARDS, counting_server, make_small, noise_shards
from margins import at_least, at_most
from processes import together
from safetensors.numpy import load_file, save_file
from stored import PICTURES, shard
from torch.distributed import HashStore

from vitkit.curation.packing import Packing, pack_shards
from vitkit.data import Columns, from_dataset, index_beside, open_source, write_index
from vitkit.data.formats import index as shard_index
from vitkit.data.formats.tar_shard import read_index
from vitkit.system.processes import sharing
from vitkit.system.processes.ranks import from_every_rank, process_group, world
from vitkit.system.processes.watchdog import watchdog


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """The folder of two packed shards of 12 images."""
    images = [(np.full((8, 8, 3), i, np.uint8), "ab"[i % 2]) for i in range(24)]
    pack_shards({"train": from_dataset(images)}, tmp_path / "packed", Packing(shard=12), 0)
    return tmp_path / "packed"


def cached_index(file, columns):
    return shard_index._read_cached(shard_index._cache_path(file, columns))


def first_shard(folder):
    return sorted(folder.glob("*.tar"))[0]


def not_to_be_read(*_):
    pytest.fail("the shard was read from its beginning to its end")


@pytest.fixture
def read_through(monkeypatch) -> list[str]:
    """The shards that were read from their beginnings to their ends, in this process: of one shard, it
    is this process that reads it."""
    files = []

    def noted(file, columns):
        files.append(file)
        return read_index(file, columns)

    monkeypatch.setattr(shard_index, "read_index", noted)
    return files


# Beside the shard


@pytest.mark.parametrize("target", ["auto", "class", "none"])
def test_packed_shards_are_not_read_through(packed, monkeypatch, target):
    columns = Columns(target=target)
    expected = [read_index(str(path), columns) for path in sorted(packed.glob("*.tar"))]
    monkeypatch.setattr(shard_index, "read_index", not_to_be_read)
    source = open_source(str(packed), columns)
    assert len(source) == 24
    for path, index in zip(sorted(packed.glob("*.tar")), expected, strict=True):
        found = cached_index(str(path), columns)
        assert np.array_equal(found.offsets, index.offsets)
        assert np.array_equal(found.sizes, index.sizes)
        assert found.names.block == index.names.block
        assert found.labels == index.labels and found.left_out == index.left_out


@pytest.mark.parametrize("columns", [Columns(label="cls"), Columns(image="png")])
def test_for_other_columns_they_are(packed, read_through, columns):
    path = str(first_shard(packed))
    assert len(open_source(path, columns)) == 12
    assert read_through == [path]


def test_a_shard_of_an_earlier_version_gets_its_index_by_the_same_command(packed):
    images = [(np.full((8, 8, 3), i, np.uint8), "ab"[i % 2]) for i in range(24)]
    path = index_beside(first_shard(packed))
    content = path.read_bytes()
    shard_before = first_shard(packed).stat().st_mtime_ns
    path.unlink()
    pack_shards({"train": from_dataset(images)}, packed, Packing(shard=12), 0)
    assert path.read_bytes() == content
    assert first_shard(packed).stat().st_mtime_ns == shard_before


def change(name, function):
    """A change of one array of an index."""

    def act(arrays):
        arrays[name] = function(arrays[name])

    return act


def _last(value):
    def act(array):
        array = array.copy()
        array[-1] = value
        return array

    return act


def _beginning(*values):
    def act(array):
        return np.array([*values, *array[len(values) :]])

    return act


def large_label(arrays):
    arrays["labels"] = np.full(400, ord("1"), np.uint8)
    arrays["labels.ends"] = np.array([400])
    arrays["codes"] = np.zeros_like(arrays["codes"])


CHANGES = {
    "of another size": change("bytes", lambda x: x + 512),
    "of other ends": change("ends", lambda x: x[::-1].copy()),
    "an image behind the end": change("offsets", _last(1 << 40)),
    "an image of exabytes": change("sizes", _last(1 << 62)),
    "an image of a negative size": change("sizes", _last(-1)),
    "an image that begins before the shard": change("offsets", lambda x: x - 1000),
    "images in each other": change("offsets", lambda x: x[::-1].copy()),
    "too few labels": change("codes", lambda x: x[:-1]),
    "an unknown label": change("codes", _last(99)),
    "a negative label": change("codes", _last(-1)),
    "names that end behind their end": change("names.ends", lambda x: x + 5),
    "names whose differences overflow": change(
        "names.ends", _beginning(2**63 - 1, -(2**63), -1, 0)
    ),
    "names that go back": change("names.ends", lambda x: x[::-1].copy()),
    "fractions": change("offsets", lambda x: x.astype(np.float64)),
    "two dimensions": change("sizes", lambda x: x[:, None]),
    "labels that are no JSON": change("labels", lambda x: x * 0 + ord("{")),
    "a label of 400 digits": large_label,
    "no codes": lambda arrays: arrays.pop("codes"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_index_that_does_not_fit_is_left(packed, read_through, name):
    """The shard is read, and what is found is right."""
    path = index_beside(first_shard(packed))
    arrays = load_file(path)
    CHANGES[name](arrays)
    save_file(arrays, path, {"left_out": "{}"})
    file = str(first_shard(packed))
    source = open_source(file)
    assert read_through == [file]
    assert [source[i][1] for i in range(12)] == source.targets.tolist()
    assert all(len(source[i][0]) for i in range(12))
    expected = read_index(file, Columns())
    found = cached_index(file, Columns())
    assert np.array_equal(found.offsets, expected.offsets) and found.labels == expected.labels


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"\xff" * 64, b"x" * 100_000])
def test_nor_is_one_that_is_none(packed, content):
    index_beside(first_shard(packed)).write_bytes(content)
    assert len(open_source(str(packed))) == 24


@pytest.mark.parametrize("status", [400, 403, 404, 405])
def test_nor_is_one_that_a_server_does_not_give(packed, monkeypatch, status):
    pytest.importorskip("aiohttp")

    def refused(handler, with_body):
        if handler.path.endswith(".index"):
            handler.send_error(status)
        else:
            answer(handler, with_body)

    answer = counted._Counting._answer
    monkeypatch.setattr(counted._Counting, "_answer", refused)
    with counting_server(packed) as (address, _):
        assert len(open_source(f"{address}/{first_shard(packed).name}")) == 12


def test_a_shard_that_was_changed_in_its_place_is_read(tmp_path):
    """Even if its size and its ends are the same: its index is older."""
    members = {f"{i}.png": PICTURES[i] for i in range(24)}
    labels = {f"{i}.cls": b"0" for i in range(24)}
    order = sorted({**members, **labels}, key=lambda name: int(name.partition(".")[0]))
    path = shard({name: {**members, **labels}[name] for name in order}, tmp_path / "x.tar")
    write_index(path)
    assert set(open_source(str(path)).targets) == {0}
    labels["12.cls"] = b"3"
    shard({name: {**members, **labels}[name] for name in order}, path)
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))
    assert open_source(str(path)).targets[12] == 3


# Bytes before the first step


@pytest.fixture
def small(monkeypatch):
    pytest.importorskip("aiohttp")
    make_small(monkeypatch)


def open_with_own_cache(address, folder):
    with process_group("cpu"):
        os.environ["VITKIT_CACHE"] = str(folder / f"cache-{world().rank}")
        source = open_source(address)
        digest = [source.targets.tolist(), source.store.offsets.tolist()]
        (folder / f"{world().rank}.json").write_text(json.dumps(digest))
        from_every_rank(None)  # as a run that goes on


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("beside", [False, True])
def test_bytes_before_the_first_step(tmp_path, small, ranks, beside):
    """With a cache for each rank, as on machines of their own."""
    size = noise_shards(tmp_path / "shards")
    if beside:
        for path in (tmp_path / "shards").glob("*.tar"):
            write_index(path)
    with counting_server(tmp_path / "shards") as (address, sent):
        address = f"{address}/train-{{000..{SHARDS - 1:03}}}.tar"
        assert together(ranks, open_with_own_cache, address, tmp_path) == [0] * ranks
        fetched = sent() / size
    if beside:
        at_most(fetched, 0.1)
    else:
        at_least(fetched, 0.9)
        assert fetched <= 1
    (answer,) = {path.read_text() for path in tmp_path.glob("*.json")}
    targets, offsets = json.loads(answer)
    assert len(targets) == len(offsets) == SHARDS * 256


# Handed round


def test_an_index_that_another_rank_gives_is_not_made_again_and_one_that_it_does_not_is(
    packed, read_through, request
):
    """Of three shards, one is claimed by a rank that gives its index, one by a rank that fails, and one
    by nobody: this process makes the last two, and gives what it has claimed."""
    watchdog.begin(HashStore(), 0, 2, patience=0)
    request.addfinalizer(watchdog.end)
    shutil.copy(first_shard(packed), packed / "train-00002.tar")
    given, failed, free = map(str, sorted(packed.glob("*.tar")))
    for path in packed.glob(f"*{shard_index.BESIDE}"):
        path.unlink()
    names = [shard_index._cache_path(file, Columns()).name for file in (given, failed, free)]
    made = shard_index._as_bytes(read_index(given, Columns()))
    for name, data in zip(names, (made, None), strict=False):
        assert sharing.claim(name)
        sharing.give(name, data)

    indices = shard_index.indices_of([given, failed, free], Columns())
    assert read_through == [free, failed]
    for file, found in zip((given, failed, free), indices, strict=True):
        expected = read_index(file, Columns())
        assert np.array_equal(found.offsets, expected.offsets) and found.labels == expected.labels
    assert sharing.take(names[2], 0) == shard_index._cache_path(free, Columns()).read_bytes()


def fails_for_all(folder):
    with process_group("cpu"):
        os.environ["VITKIT_CACHE"] = str(folder / f"cache-{world().rank}")
        try:
            open_source(str(folder / "shards"))
        except ValueError as error:
            (folder / f"{world().rank}.txt").write_text(str(error))


@pytest.mark.slow
def test_a_damaged_shard_is_the_same_sentence_on_all_ranks(tmp_path):
    noise_shards(tmp_path / "shards", each=8)
    path = tmp_path / "shards" / "train-002.tar"
    path.write_bytes(path.read_bytes()[:-11_000])
    assert together(2, fails_for_all, tmp_path) == [0, 0]
    (sentence,) = {file.read_text() for file in tmp_path.glob("*.txt")}
    assert "train-002.tar is not a readable tar file" in sentence


def opened_by_one(folder):
    with process_group("cpu"):
        if world().rank == 0:
            assert len(open_source(str(folder / "shards"))) == 32


@pytest.mark.slow
def test_a_rank_may_open_data_that_the_others_do_not(tmp_path):
    noise_shards(tmp_path / "shards", each=8)
    assert together(2, opened_by_one, tmp_path) == [0, 0]


def exchange(folder):
    with process_group("cpu", patience=1):
        assert sharing.ranks_sharing() == 2
        large = bytes(range(256)) * 20_000  # more than the store takes at once
        for key, data in (("large", large), ("empty", b""), ("failed", None)):
            if sharing.claim(key):
                sharing.give(key, data)
            assert sharing.take(key, time.monotonic()) == data
        sharing.claim("dead")  # by one of them, who never gives it
        assert sharing.take("dead", time.monotonic()) is None
    assert sharing.ranks_sharing() == 1


@pytest.mark.slow
def test_what_ranks_give_each_other(tmp_path):
    assert together(2, exchange, tmp_path) == [0, 0]


def test_the_index_of_an_address_is_asked_for_with_its_signature(monkeypatch):
    asked = []
    monkeypatch.setattr(shard_index.remote, "exists", lambda path: asked.append(path) or False)
    for address in ("https://a.example/x.tar?sig=1&end=2", "s3://bucket/x.tar", "folder/x.tar"):
        assert shard_index._read_beside(address, Columns()) is None
    beside = shard_index.BESIDE
    assert asked == [
        f"https://a.example/x.tar{beside}?sig=1&end=2",
        f"s3://bucket/x.tar{beside}",
        f"folder/x.tar{beside}",
    ]


def test_an_index_that_cannot_be_read_again_is_said(packed, monkeypatch):
    """As on a disk that forgets what was written to it."""
    for path in packed.glob(f"*{shard_index.BESIDE}"):
        path.unlink()
    monkeypatch.setattr(shard_index, "_write_cached", lambda path, data: None)
    with pytest.raises(
        OSError, match=r"the index of .*\.tar was written to .*, and cannot be read"
    ):
        shard_index.indices_of([str(first_shard(packed))], Columns())
