"""How many bytes a run fetches of data that lies elsewhere, in times the bytes of the data.

A file server on this machine counts what it sends of tar shards of noise. Several ranks, which meet by
gloo, go through them for some epochs, each with several workers. What the run takes for large
data begins here at 1 MB, and windows have 16 chunks of 1 MB in place of 32 MB.

- opened: before the first step, by all ranks together, each with a cache of its own, as on machines of
  their own; of shards that `vitkit data pack` wrote, and of the same without their indices;
- epoch: an epoch of training, the mean of all;
- evaluated: a pass over all images.

    python benchmarks/remote_data.py --output FILE
"""

import multiprocessing
import os
import socket
import tempfile
import threading
from collections import Counter
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import numpy as np
import record

from vitkit.curation.packing import Packing, pack_shards
from vitkit.data import (
    Augmentation,
    Preprocessing,
    eval_batches,
    from_dataset,
    open_source,
    train_batches,
)
from vitkit.data.formats import tar
from vitkit.data.sources import stores
from vitkit.system.processes.ranks import from_every_rank, process_group, world

PACKAGES = ("torch", "numpy", "fsspec", "aiohttp", "vitkit")
SHAPES = ((1, 4), (2, 2), (4, 1))  # ranks, workers of each
MB = 1 << 20
SIDE = 64  # pixels of an image, which no compression makes smaller
BATCH = 48
SMALL = Preprocessing(size=(16, 16))
AS_IT_IS = Augmentation(crop="none")


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    for module, name, value in [
        (stores, "KEEP", MB),
        (stores, "WINDOW", 16 * MB),
        (tar, "RANGE", MB),
    ]:
        setattr(module, name, value)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        whole = write_shards(folder, options)
        for ranks, workers in SHAPES:
            ask = partial(measured, folder, ranks)
            foreign = ask("foreign", opened)
            packed = ask("packed", opened)
            trained_on = ask("packed", trained, workers, options.epochs)
            evaluated_on = ask("packed", evaluated, workers)
            row = {
                "ranks": ranks,
                "workers": workers,
                "opened, foreign": foreign / whole,
                "opened, packed": packed / whole,
                "epoch": (trained_on - packed) / whole / options.epochs,
                "evaluated": (evaluated_on - packed) / whole,
            }
            rows.append({name: round(value, 3) for name, value in row.items()})
            print(rows[-1], flush=True)
    result = {
        **record.about(__doc__, PACKAGES),
        "load": record.load(),
        "megabytes": round(whole / MB, 1),
        "shards": options.shards,
        "results": rows,
    }
    record.write(result, options.output)
    return result


def write_shards(folder: Path, options) -> int:
    """Tar shards of noise, with an index in "packed" and without in "foreign"; returns their bytes."""
    count = options.megabytes * MB // (SIDE * SIDE * 3)
    draws = np.random.default_rng(0)
    images = [
        (draws.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8), i % 5) for i in range(count)
    ]
    packing = Packing(shard=-(-count // options.shards))
    pack_shards({"train": from_dataset(images)}, folder / "packed", packing, 0)
    (folder / "foreign").mkdir()
    size = 0
    for shard in (folder / "packed").glob("*.tar"):
        (folder / "foreign" / shard.name).hardlink_to(shard)
        size += shard.stat().st_size
    return size


# What ranks do


def opened(address: str) -> None:
    with process_group("cpu"):
        open_source(address)
        from_every_rank(None)  # a run goes on, and does not leave its ranks while they open theirs


def trained(address: str, workers: int, epochs: int) -> None:
    with process_group("cpu"):
        source = open_source(address)
        share = tuple(world())
        readers = share[1] * workers
        batches = train_batches(
            source, AS_IT_IS, SMALL, BATCH, 0, 0, workers, share, readers=readers
        )
        with closing(batches):
            for _ in islice(batches, epochs * len(source) // BATCH):
                pass


def evaluated(address: str, workers: int) -> None:
    with process_group("cpu"):
        source = open_source(address)
        share = tuple(world())
        for _ in eval_batches(source, SMALL, BATCH, workers, share):
            pass


# Processes, and the server that counts


def measured(folder: Path, ranks: int, shards: str, act, *args) -> int:
    """The bytes that are fetched while ranks act(address, *args), each with an empty cache."""
    server, sent = counting(folder / shards)
    address = f"http://127.0.0.1:{server.server_port}/"
    names = sorted(path.name for path in (folder / shards).glob("*.tar"))
    caches = tempfile.mkdtemp(dir=folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def rank_of_run(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ["VITKIT_CACHE"] = f"{caches}/{rank}"
        act(address + "{" + ",".join(names) + "}", *args)

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=rank_of_run, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    server.shutdown()
    server.server_close()
    assert not any(process.exitcode for process in processes), "a rank has failed"
    return sum(sent.values())


def counting(folder: Path) -> tuple[ThreadingHTTPServer, Counter]:
    """A server of a folder's files and of their parts, and the bytes that it has sent of each."""
    sent: Counter = Counter()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Counting, folder, sent))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, sent


class Counting(BaseHTTPRequestHandler):
    """Serves files and ranges of them, as object stores do."""

    def __init__(self, folder: Path, sent: Counter, *args):
        self.folder = folder
        self.sent = sent
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        file = self.folder / self.path.lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        size = file.stat().st_size
        status = 200
        first = 0
        end = size
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            status = 206
            begin, _, last = asked.removeprefix("bytes=").partition("-")
            first = int(begin)
            end = min(int(last or size) + 1, size)
        with file.open("rb") as opened_file:
            opened_file.seek(first)
            data = opened_file.read(end - first)
        self.send_response(status)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{size}"')
        self.send_header("Content-Length", str(len(data)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{size}")
        self.end_headers()
        if with_body:
            self.wfile.write(data)
            self.sent[file.name] += len(data)

    def log_message(self, *_) -> None:
        """Silent."""


if __name__ == "__main__":
    main()
