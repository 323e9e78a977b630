"""Data sets larger than memory: shards and their index, row groups in windows, files elsewhere, the
hub, ten million rows."""

import errno
import io
import itertools
import os
import pickle
import tarfile
import threading
import time
import tracemalloc
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from margins import at_most
from pictures import photograph
from stored import PICTURES, shard, write_parquet

from vitkit.data import (
    Augmentation,
    Columns,
    Names,
    Preprocessing,
    RowRanges,
    Source,
    leads_elsewhere,
    open_source,
    open_splits,
    permutation,
    train_batches,
)
from vitkit.data.formats import index as shard_index
from vitkit.data.formats import tar as tars
from vitkit.data.formats.parquet import ParquetRows
from vitkit.data.sources import stores
from vitkit.data.sources.source import stratified
from vitkit.system.errors import BadImage
from vitkit.system.storage import remote, retries
from vitkit.system.storage.files import cache_dir


def shards(folder, name: str = "train-{:03}.tar", count: int = 3, each: int = 8):
    for number in range(count):
        members = {}
        for i in range(number * each, (number + 1) * each):
            members[f"a/{i:05}.png"] = PICTURES[i % 24]
            members[f"a/{i:05}.cls"] = str(i % 5).encode()
            members[f"a/{i:05}.txt"] = b"x"
        shard(members, folder / name.format(number))
    return folder


def check(source, count: int = 24) -> None:
    assert len(source) == count and source.targets.tolist() == [i % 5 for i in range(count)]
    in_any_order = np.random.default_rng(0).permutation(count).tolist()
    for i in in_any_order:
        assert source[i] == (PICTURES[i], i % 5)


# Tar shards


def test_shards_are_read_in_any_order_and_indexed_once(tmp_path, monkeypatch):
    folder = shards(tmp_path / "wds")
    check(open_source(str(folder)))
    (folder / "classes.txt").write_text("\n".join("abcde"))
    monkeypatch.setattr(shard_index, "read_index", lambda *_: pytest.fail("it was indexed before"))
    for where in (
        folder,
        folder / "train-{000..002}.tar",
        folder / "train-*.tar",
        folder / "train-00?.tar",
    ):
        source = open_source(str(where))
        check(source)
        assert source.labels == tuple("abcde") and source.name(9) == "train-001.tar a/00009.png"
    check(pickle.loads(pickle.dumps(source)))
    assert len(list(cache_dir().rglob("*.index"))) == 3


def test_a_shard_that_changed_is_indexed_anew(tmp_path):
    path = shard(
        {"1.png": PICTURES[0], "1.cls": b"0", "2.png": PICTURES[1], "2.cls": b"1"},
        tmp_path / "x.tar",
    )
    old = open_source(str(path))
    shard({"7.png": PICTURES[3], "7.cls": b"2"}, path)
    assert open_source(str(path))[0] == (PICTURES[3], 2)
    state = path.stat()
    shard({"7.png": PICTURES[3], "7.cls": b"1"}, path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as a copy that keeps times would
    assert path.stat().st_size == state.st_size and open_source(str(path))[0] == (PICTURES[3], 1)
    with pytest.raises(BadImage, match=r"x.tar 2.png is cut off: the shard has changed"):
        path.write_bytes(path.read_bytes()[:700])
        _ = old[1]


def test_labels_may_be_names_or_lie_in_json(tmp_path):
    members = {"1.jpg": b"a", "1.json": b'{"label": "cat"}'}
    members |= {"2.jpg": b"b", "2.json": b'{"label": "ant"}'}
    source = open_source(str(shard(members, tmp_path / "x.tar")))
    assert source.labels == ("ant", "cat")
    assert source[0] == (b"a", 1) and source[1] == (b"b", 0)
    fractions = {"1.jpg": b"a", "1.json": b'{"y": 0.0}', "2.jpg": b"b", "2.json": b'{"y": 1.0}'}
    assert open_source(str(shard(fractions, tmp_path / "y.tar"))).targets.tolist() == [0, 1]


def test_columns_name_the_extensions_of_image_and_label(tmp_path):
    path = shard({"1.seg.png": b"s", "1.jpg": b"a", "1.y.txt": b"3"}, tmp_path / "y.tar")
    assert open_source(str(path), Columns("jpg", "y.txt"))[0] == (b"a", 3)
    assert open_source(str(path), Columns("seg.png", "y.txt"))[0] == (b"s", 3)


@pytest.mark.parametrize("label", [b'{"a": 1}', b"NaN", b"-Infinity"])
def test_other_values_in_json_are_no_labels(tmp_path, label):
    members = {"1.jpg": b"a", "1.json": b'{"label": 1}'}
    members |= {"2.jpg": b"b", "2.json": b'{"label": ' + label + b"}"}
    message = r"x.tar 2.json has the label .*; a label is a number, a name, or a list"
    with pytest.raises(ValueError, match=message):
        open_source(str(shard(members, tmp_path / "x.tar")))


def test_names_of_classes_are_lines_and_nothing_else_ends_one(tmp_path):
    path = shard({"1.png": PICTURES[0], "1.cls": b"2"}, tmp_path / "x.tar")
    (tmp_path / "classes.txt").write_bytes("\ufeffa\r\nb\u2028b\x0cb\r\nc\r\n".encode())
    assert open_source(str(path)).labels == ("a", "b\u2028b\x0cb", "c")
    (tmp_path / "classes.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="classes.txt is not UTF-8 text .*; save it as UTF-8"):
        open_source(str(path))


@pytest.mark.slow
def test_an_index_holds_millions_of_names(tmp_path):
    names = Names(b"x" * 110_000_000, np.arange(1, 11) * 11_000_000)  # longer than a header may be
    index = shard_index.Index(np.arange(10), np.arange(10), names, ["b", "a"] * 5, Counter(x=1))
    shard_index._write_cached(tmp_path / "x.index", shard_index._as_bytes(index))
    again = shard_index._read_cached(tmp_path / "x.index")
    assert again.names.block == names.block
    assert np.array_equal(again.names.ends, names.ends)
    assert again.labels == ["b", "a"] * 5 and again.left_out == {"x": 1}


def test_parts_are_told_by_the_names_of_shards(tmp_path):
    shards(tmp_path / "w", "imagenet-train-{:04}.tar", 2)
    shards(tmp_path / "w", "imagenet-val-{:04}.tar", 1)
    splits = open_splits(str(tmp_path / "w"))
    assert (len(splits.train), len(splits.val)) == (16, 8) and splits.made_test is None


def test_nothing_in_a_shard_leads_out_of_it(tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(PICTURES[5])
    with tarfile.open(tmp_path / "x.tar", "w") as file:
        for name, kind, target in [
            ("link.png", tarfile.SYMTYPE, str(secret)), ("hard.png", tarfile.LNKTYPE, "../secret.png"),
            ("pipe.png", tarfile.FIFOTYPE, ""), ("null.png", tarfile.CHRTYPE, ""),
        ]:  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            file.addfile(info)
        for name, data in {
            "../../up.png": PICTURES[1],
            "../../up.cls": b"1",
            "/etc/top.png": b"t",
            "/etc/top.cls": b"2",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    before = sorted(tmp_path.rglob("*"))
    splits = open_splits(str(tmp_path / "x.tar"))
    source = open_source(str(tmp_path / "x.tar"))
    assert [source[i] for i in range(len(source))] == [(PICTURES[1], 1), (b"t", 2)]
    assert "4 members other than plain files" in splits.notes[0]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("members", "message"), [
    ({"1.png": b"a", "2.png": b"a", "2.cls": b"0"}, r"x.tar 1.png has no label, .* expected a .cls"),
    ({"1.png": b"a", "1.json": b'{"label": null}', "2.png": b"a", "2.json": b'{"label": 1}'}, "x.tar 1.png has no label"),
    ({"1.png": b"a", "1.json": b'{"label": 1, "y": 2}'}, "1.json: several columns may be meant: label, y"),
    ({"1.png": b"a", "1.jpg": b"b", "1.cls": b"0"}, r"x.tar 1 has several images \(png, jpg\)"),
    ({"1.png": b"a", "1.json": b"{"}, r"x.tar 1.json: "),
    ({"1.png": b"a", "1.json": b"[1]"}, "x.tar 1.json is not an object"),
    ({"1.png": b"a", "1.PNG": b"b", "1.cls": b"0"}, r"x.tar holds 1.PNG twice; give every example a name"),
    ({"1.txt": b"a", "1.cls": b"0"}, "holds no images; expected KEY.jpg and KEY.cls"),
    ({"1.png": b"a", "1.cls": b"cat", "2.png": b"a", "2.cls": b"3"}, None),  # names, one of which is a number
])  # fmt: skip
def test_shards_that_cannot_be_understood(tmp_path, members, message):
    path = str(shard(members, tmp_path / "x.tar"))
    if message is None:
        assert open_source(path).labels == ("3", "cat")
        return
    with pytest.raises(ValueError, match=message) as caught:
        open_splits(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", [
    lambda d: b"",
    lambda d: b"x" * 2000,
    lambda d: d[: len(d) // 3],
    lambda d: d[:1000] + b"\7" * 500,
    lambda d: d + d,
    lambda d: d[:3072] + bytes(512) + d[3584:],
    lambda d: d[:3072] + bytes(1 << 20),  # room made for a download that was not finished
])  # fmt: skip
def test_damaged_shards_are_one_sentence(tmp_path, damage):
    path = shards(tmp_path, count=1) / "train-000.tar"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="train-000.tar is not a readable tar file: ") as caught:
        open_splits(str(path))
    assert "\n" not in str(caught.value)


# Windows


def test_windows_hold_whole_chunks_and_every_example_comes_once():
    sizes = np.random.default_rng(0).integers(3, 30, 40)
    chunk_of = np.repeat(np.arange(40), sizes)
    count = len(chunk_of)
    first, second = (permutation(count, 5, epoch, (chunk_of, 6)) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(count))
    assert not np.array_equal(first, second)
    for order in (first, second):
        for chunk in range(40):
            visits = np.flatnonzero(chunk_of[order] == chunk)
            in_use = chunk_of[order][visits[0] : visits[-1] + 1]
            assert len(set(in_use)) <= 6  # at most five others while this chunk is in use
    assert np.ptp(first[:20]) > 19  # shuffled within a window
    one_window = (np.zeros(50, int), 1)
    assert np.array_equal(permutation(50, 5, 0), permutation(50, 5, 0, one_window))


@pytest.mark.parametrize("workers", [0, 2])
def test_training_reads_large_parquet_files_by_windows(tmp_path, monkeypatch, workers):
    source = open_source(write_parquet(tmp_path / "x.parquet"))
    for name, value in (("KEEP", 10), ("WINDOW", 10), ("LEAST", 3)):
        monkeypatch.setattr(stores, name, value)
    reads = []
    load = ParquetRows._load

    def counting(store, group):
        reads.append(group)
        return load(store, group)

    monkeypatch.setattr(ParquetRows, "_load", counting)
    how, to = Augmentation(crop="none", flip=False), Preprocessing(size=(8, 9))
    batches = train_batches(source, how, to, 4, 0, 0, workers)
    seen = [next(batches) for _ in range(12)]
    batches.close()
    for epoch in (seen[:6], seen[6:]):
        assert sorted(torch.cat([batch.indices for batch in epoch]).tolist()) == list(range(24))
    for batch in seen:
        for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
            assert np.array_equal(image.permute(1, 2, 0), photograph(8, 9, index))
    if not workers:
        assert sorted(reads) == sorted(list(range(12)) * 2) and len(source.store.cache) == 3


# Elsewhere


class Ranges(SimpleHTTPRequestHandler):
    """A file server that, as object stores do, serves parts of files."""

    asked: ClassVar[list[str]] = []

    def do_GET(self):
        Ranges.asked.append(self.headers.get("Range", "all"))
        path = self.translate_path(self.path)
        if "Range" not in self.headers or not Path(path).is_file():
            return super().do_GET()
        data = Path(path).read_bytes()
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        part = data[int(first) : int(last or len(data)) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        return None

    def end_headers(self):
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, *_):
        """Silent."""


@pytest.fixture
def served(tmp_path):
    pytest.importorskip("aiohttp")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path)))
    serve = partial(server.serve_forever, poll_interval=0.01)
    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_shards_and_parquet_files_over_http(tmp_path, served, monkeypatch):
    shards(tmp_path / "wds")
    write_parquet(tmp_path / "x.parquet")
    check(open_source(f"{served}/x.parquet"))
    where = served + "/wds/train-{000..002}.tar"
    source = open_source(where)
    source.prepare()  # small: whole, in as few requests as there are ranges
    Ranges.asked.clear()
    check(source)
    assert not Ranges.asked
    monkeypatch.setattr(stores, "KEEP", 10)
    monkeypatch.setattr(tars, "RANGE", 8192)
    check(open_source(where))
    assert len(Ranges.asked) > 5
    assert Ranges.asked.count("all") <= 1  # for classes.txt, which is not there
    one = train_batches(source, Augmentation(), Preprocessing(size=(8, 8)), 6, 0, 0, 2)
    other = train_batches(source, Augmentation(), Preprocessing(size=(8, 8)), 6, 0, 0, 0)
    for _ in range(5):
        assert torch.equal(next(one).images, next(other).images)
    one.close()


def test_a_connection_that_drops_is_tried_again(tmp_path, served, monkeypatch):
    shards(tmp_path / "wds")
    write_parquet(tmp_path / "x.parquet")
    asked, whole = itertools.count(), Ranges.do_GET

    def half(self):
        is_there = Path(self.translate_path(self.path)).is_file()
        if next(asked) % 3 or not is_there:
            return whole(self)
        self.send_response(206)  # promises more than it sends
        self.send_header("Content-Range", "bytes 0-999/1000")
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * 500)
        self.close_connection = True
        return None

    monkeypatch.setattr(Ranges, "do_GET", half)
    monkeypatch.setattr(retries.time, "sleep", lambda _: None)
    monkeypatch.setattr(stores, "KEEP", 10)
    monkeypatch.setattr(tars, "RANGE", 8192)
    check(open_source(f"{served}/x.parquet"))
    check(open_source(served + "/wds/train-{000..002}.tar"))


def test_what_no_library_opens_is_said_in_a_line():
    def unknown(system, path):
        raise ValueError("Protocol not known: x9\nKnown ones are many")

    for operation, address in ((len, "x9://a/b.tar"), (unknown, "memory://a/b.tar")):
        with pytest.raises(ValueError, match="Protocol not known: x9; try pip install") as said:
            retries.with_retries(operation, address)
        assert "\n" not in str(said.value)


@pytest.fixture
def pauses(monkeypatch):
    """How long was waited, instead of waiting."""
    seconds = []
    monkeypatch.setattr(retries.time, "sleep", seconds.append)
    monkeypatch.setattr(retries, "_reported_servers", set())
    return seconds


def answering(monkeypatch, status, times=None, only="", retry_after=None):
    """Let the server answer with a status, so many times each address, or always."""
    asked = Counter()
    for verb in ("do_GET", "do_HEAD"):
        whole = getattr(Ranges, verb)

        def answer(self, whole=whole, verb=verb):
            asked[verb, self.path] += 1
            if only not in self.path or (times and asked[verb, self.path] > times):
                return whole(self)
            self.send_response(status)
            if retry_after:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

        monkeypatch.setattr(Ranges, verb, answer)
    return asked


def test_a_busy_server_is_asked_again(tmp_path, served, monkeypatch, pauses, capsys):
    shards(tmp_path / "wds")
    write_parquet(tmp_path / "x.parquet")
    answering(monkeypatch, 500, times=3)
    check(open_source(f"{served}/x.parquet"))
    check(open_source(served + "/wds/train-{000..002}.tar"))
    assert capsys.readouterr().err.count(f"{served} answers 500 (") == 1
    assert len(pauses) >= 6 and sum(pauses[:3]) <= 7


def test_a_busy_server_does_not_lose_a_file_beside_the_others(
    tmp_path, served, monkeypatch, pauses
):
    shards(tmp_path / "wds")
    (tmp_path / "wds" / "classes.txt").write_text("a\nb\nc\nd\ne")
    answering(monkeypatch, 503, times=2, only="classes.txt")
    assert open_source(served + "/wds/train-{000..002}.tar").labels == tuple("abcde")


def test_a_server_that_says_when_is_waited_for(tmp_path, served, monkeypatch, pauses):
    write_parquet(tmp_path / "x.parquet")
    answering(monkeypatch, 429, times=1, retry_after="17")
    assert remote.read_range(f"{served}/x.parquet", 0, 4) == b"PAR1"
    assert pauses == [17]
    answering(monkeypatch, 429, times=1, retry_after="86400")
    assert remote.read_range(f"{served}/x.parquet?again", 0, 4) == b"PAR1"
    assert max(pauses) == retries.LONGEST


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (503, "cannot be read, after 7 attempts: the server answers 503 .Service Unavailable.$"),
        (429, "cannot be read, after 7 attempts: the server answers 429 .Too Many Requests.$"),
        (400, "x.parquet cannot be read: the server answers 400 .Bad Request.$"),
        (403, "may not be read, or is not there: the server answers 403 .Forbidden.$"),
        (404, "^there is no http"),
    ],
)
def test_what_a_server_answers_is_named(tmp_path, served, monkeypatch, pauses, status, sentence):
    write_parquet(tmp_path / "x.parquet")
    answering(monkeypatch, status)
    with pytest.raises(OSError, match=sentence):
        remote.open_file(f"{served}/x.parquet")
    with pytest.raises(OSError, match=sentence):
        remote.read_range(f"{served}/x.parquet", 0, 10)
    assert len(pauses) == 2 * (retries.BUSY_ATTEMPTS - 1) * (status in retries.BUSY)
    if status in (403, 404):  # of a file that need not be there
        assert not remote.exists(f"{served}/x.parquet")
    else:
        with pytest.raises(OSError, match=sentence):
            remote.exists(f"{served}/x.parquet")


class ClientError(Exception):
    """As botocore has it, below s3fs."""

    def __init__(self, code, status):
        self.response = {
            "Error": {"Code": code, "Message": "Please reduce your request rate."},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


def test_a_throttling_object_store_is_named(pauses, monkeypatch):
    def throttled(self, path, **_):
        raise OSError(errno.EBUSY, "Please reduce your request rate.") from ClientError(
            "SlowDown", 503
        )

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", throttled)
    with pytest.raises(OSError, match="after 7 attempts: the server answers 503"):
        remote.open_file("memory://bucket/x.tar")


def test_addresses_may_be_signed(tmp_path, served):
    write_parquet(tmp_path / "x.parquet")
    shards(tmp_path / "wds")
    source = open_source(f"{served}/x.parquet?sig=a%2Fb&se=2026-11-21")
    check(source)
    assert source.name(3) == "x.parquet row 3"
    check(open_source(served + "/wds/train-{000..002}.tar?sig=a/b"))


def test_a_remote_shard_that_changed_is_indexed_anew(tmp_path, served):
    path = shard({"1.png": PICTURES[0], "1.cls": b"0"}, tmp_path / "x.tar")
    os.utime(path, (1e9, 1e9))
    assert open_source(f"{served}/x.tar").targets.tolist() == [0]
    shard({"1.png": PICTURES[0], "1.cls": b"3"}, path)
    os.utime(path, (1.1e9, 1.1e9))
    # of the same size, but a file server tells the time
    assert open_source(f"{served}/x.tar").targets.tolist() == [3]


def test_an_object_store(tmp_path):
    """fsspec's memory file system stands for s3:// and gs://: the same calls."""
    shards(tmp_path / "wds")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "wds"), "/bucket/wds", recursive=True)
    for where in (
        "memory://bucket/wds",
        "memory://bucket/wds/train-*.tar",
        "memory://bucket/wds/train-{000..002}.tar",
    ):
        check(open_source(where))
    memory.pipe("/bucket/wds/classes.txt", b"a\nb\nc\nd\ne")
    assert open_source("memory://bucket/wds").labels == tuple("abcde")
    memory.rm("/bucket", recursive=True)


def test_what_cannot_be_fetched_is_one_sentence(served, tmp_path, monkeypatch):
    monkeypatch.setattr(retries.time, "sleep", lambda _: None)
    for where, message in [
        (f"{served}/none.tar", "there is no http"),
        (f"{served}/none.parquet", "^there is no http"),
        (f"{served}/none/of/it", "^there is no http"),
        ("http://127.0.0.1:9/x.tar", "http://127.0.0.1:9/x.tar cannot be read, after 4 attempts: "),
        ("nowhere://x/y.tar", "nowhere://x/y.tar cannot be opened: .*nowhere"),
    ]:
        with pytest.raises((ValueError, OSError), match=message) as caught:
            open_splits(where)
        assert "\n" not in str(caught.value)


def test_a_server_without_ranges_is_noticed(tmp_path, served, monkeypatch):
    shards(tmp_path / "wds", count=1)
    source = open_source(f"{served}/wds/train-000.tar")
    monkeypatch.setattr(Ranges, "do_GET", SimpleHTTPRequestHandler.do_GET)
    with pytest.raises(OSError, match="asked for [0-9,]+ bytes from 512, [0-9,]+ came"):
        source.prepare()


def test_braces_are_written_out():
    assert remote.expand("a-{008..010}.tar") == ["a-008.tar", "a-009.tar", "a-010.tar"]
    assert remote.expand("{b,a}/{1..2}.x") == ["a/1.x", "a/2.x", "b/1.x", "b/2.x"]
    with pytest.raises(ValueError, match="represents more than"):
        remote.expand("{0..9999}-{0..9999}")


@pytest.mark.parametrize(
    "pattern",
    [
        f"x{{{'0' * 3000}..{'9' * 3000}}}",
        "{0..999999}",
        "a" * 10_000 + "{0..99999}",
        "{a}" * 100_000,
        f"{{0..{'9' * 5000}}}",
    ],
)
def test_a_pattern_of_a_stranger_does_not_fill_the_memory(pattern):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="represents") as raised:
            leads_elsewhere(pattern)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20
    assert len(str(raised.value)) < 500


# The hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=list("abcde"))}
    )
    rows = {
        "img": [{"bytes": data, "path": None} for data in PICTURES],
        "label": [i % 5 for i in range(24)],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def test_a_directory_that_datasets_saved(hub, tmp_path):
    import datasets

    hub.save_to_disk(str(tmp_path / "one"))
    source = open_source(str(tmp_path / "one"))
    check(source)
    assert source.labels == tuple("abcde")
    check(pickle.loads(pickle.dumps(source)))
    parts = {"train": hub, "test": hub.select(range(5)), "extra": hub.select(range(2))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "all"))
    splits = open_splits(str(tmp_path / "all"))
    assert (len(splits.train), len(splits.test)) == (24, 5)
    assert "the splits extra" in splits.notes[0]
    check(splits.train)


def test_a_data_set_by_name(hub, tmp_path, monkeypatch):
    (tmp_path / "name" / "data").mkdir(parents=True)
    hub.to_parquet(str(tmp_path / "name/data/train-00000-of-00001.parquet"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    check(open_source(f"hf:{tmp_path / 'name'}"))
    with pytest.raises(ValueError, match="hf:no-one/nothing cannot be opened: "):
        open_splits("hf:no-one/nothing")


def test_a_row_may_not_name_any_file(hub, tmp_path):
    import datasets

    (tmp_path / "secret.png").write_bytes(PICTURES[0])
    features = datasets.Features(
        {"image": datasets.Image(decode=False), "label": datasets.Value("int64")}
    )
    rows = {"image": [{"bytes": None, "path": str(tmp_path / "secret.png")}], "label": [0]}
    table = datasets.Dataset.from_dict(rows, features=features)
    from vitkit.data.formats.hub import HubRows

    with pytest.raises(BadImage, match="outside of the hub's cache"):
        HubRows("x", (table,), "image", RowRanges.of([1])).read(0)


# Ten million


class Synthetic:
    """A store of ten million pictures of one pixel, in 10,000 chunks or none."""

    def __init__(self, chunks_in_window: int):
        self.chunks_in_window = chunks_in_window

    def read(self, row: int) -> np.ndarray:
        return np.full((1, 1), row % 251, np.uint8)

    def name(self, row: int) -> str:
        return f"row {row}"

    def prepare(self, rows: np.ndarray) -> None:
        """Nothing to do."""

    def chunks(self, rows: np.ndarray):
        return (rows // 1000, self.chunks_in_window) if self.chunks_in_window else None


@pytest.mark.parametrize(
    ("count", "chunks_in_window"),
    [
        (2_000_000, 0),
        pytest.param(10_000_000, 0, marks=pytest.mark.slow),
        pytest.param(10_000_000, 16, marks=pytest.mark.slow),
    ],
)
def test_millions_of_examples_start_in_seconds_in_bounded_memory(count, chunks_in_window):
    began = time.perf_counter()
    tracemalloc.start()  # numpy counts there too
    targets = np.arange(count) * 7919 % 1000
    source = Source(
        Synthetic(chunks_in_window), np.arange(count), targets, tuple(map(str, range(1000)))
    )
    if not chunks_in_window:
        _, test = stratified(targets, 0.2, 0)
        assert len(test) == count // 5
        assert (np.bincount(targets[test]) == count // 5000).all()
    batches = train_batches(
        source, Augmentation(crop="none"), Preprocessing(size=(1, 1)), 256, 0, 123_456, 0
    )
    first = next(batches)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert torch.equal(first.images[:, 0, 0, 0], (first.indices % 251).to(torch.uint8))
    assert len(set(first.indices.tolist())) == 256
    assert time.perf_counter() - began < 60  # about 4 on an idle core
    at_most(held / count, 60)  # bytes
    at_most(peak / count, 120)


def test_millions_of_labels_are_read_in_seconds(tmp_path):
    count = 300_000
    images = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(count, np.int32)), pa.array([PICTURES[0]])
    )
    table = pa.table({"image": images.cast(pa.binary()), "label": np.arange(count) % 1000})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100_000)
    began = time.perf_counter()
    assert len(open_source(str(tmp_path / "x.parquet"))) == count
    assert time.perf_counter() - began < 10  # about 0.2 on an idle core
