"""A file server in a process of its own, which counts the bytes that it sends; and data so small that
tests take seconds, which vitkit takes for too large to keep."""

import io
import multiprocessing
import tarfile
from contextlib import contextmanager
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from pictures import encoded

from vitkit.data.formats import tar
from vitkit.data.sources import stores

CHUNK = 1 << 16  # bytes that are fetched at once
SHARDS = 4
EACH = 256  # images of about 3 kB in a shard: 13 chunks


def make_small(monkeypatch) -> None:
    """More than one chunk is too much to keep, and a window has 16."""
    monkeypatch.setattr(stores, "KEEP", CHUNK)
    monkeypatch.setattr(stores, "WINDOW", 16 * CHUNK)
    monkeypatch.setattr(tar, "RANGE", CHUNK)


def noise_shards(folder: Path, shards: int = SHARDS, each: int = EACH) -> int:
    """Tar shards of noise, which no compression makes smaller; returns their bytes."""
    pictures = noise(shards * each)
    folder.mkdir()
    size = 0
    for number in range(shards):
        path = folder / f"train-{number:03}.tar"
        with tarfile.open(path, "w") as file:
            for i in range(number * each, (number + 1) * each):
                for suffix, data in (("png", pictures[i]), ("cls", b"%d" % (i % 5))):
                    info = tarfile.TarInfo(f"{i:05}.{suffix}")
                    info.size = len(data)
                    file.addfile(info, io.BytesIO(data))
        size += path.stat().st_size
    return size


@cache
def noise(count: int) -> list[bytes]:
    """The files of so many pictures of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return [encoded(picture, "PNG", compress_level=0) for picture in pixels]


@contextmanager
def counting_server(folder: Path):
    """A block with (address of the folder, function that returns how many bytes were sent)."""
    fork = multiprocessing.get_context("fork")
    sent = fork.Value("q")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Counting, folder, sent))
    process = fork.Process(target=server.serve_forever, daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", lambda: sent.value
    finally:
        process.kill()
        process.join()
        server.server_close()


class _Counting(BaseHTTPRequestHandler):
    def __init__(self, folder: Path, sent, *args):
        self.folder = folder
        self.sent = sent
        super().__init__(*args)

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def _answer(self, with_body: bool):
        file = self.folder / self.path.lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        data = file.read_bytes()
        size = len(data)
        first = 0
        asked = self.headers.get("Range")
        if asked:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first = int(begin)
            data = data[first : int(end or size) + 1]
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{file.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(len(data)))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{size}")
        self.end_headers()
        if with_body:
            self.wfile.write(data)
            with self.sent.get_lock():
                self.sent.value += len(data)

    def log_message(self, *_):
        """Silent."""
