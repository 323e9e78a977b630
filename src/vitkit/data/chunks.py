"""What stores share that are read in chunks, of which each process keeps a few: row groups of parquet files, ranges of shards.

What fits in KEEP bytes is read once, whole, before worker processes are forked, and any order is as good as another. Of
larger stores a process keeps a window of chunks, and the order of training goes from window to window (see loader.py).
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

import numpy as np

from vitkit.system import remote
from vitkit.system.progress import bar

KEEP = 2 << 30  # bytes: what is smaller is kept in memory, compressed as it is
WINDOW = 512 << 20  # bytes of larger ones that a process keeps
LEAST = 4  # chunks in a window, however large they are


def window(size: int, count: int) -> int:
    """How many of `count` chunks, `size` bytes in all, make a window."""
    return max(LEAST, WINDOW * count // max(size, 1))


def cached(cache: OrderedDict, key: int, load: Callable, most: int | None):
    """load(key), or what it returned before: the cache keeps the `most` last used; None keeps all."""
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    while most is not None and len(cache) >= most:
        cache.popitem(last=False)
    cache[key] = load(key)
    return cache[key]


def fetching(chunks: np.ndarray, files: Sequence[str]) -> Iterable:
    """The same chunks, under a progress bar if they come from elsewhere."""
    if any(map(remote.is_address, files)):
        return bar("fetching")(chunks, len(chunks))
    return chunks


def titles(files: Sequence[str]) -> list[str]:
    """What to call each file: its name, or if two have the same, its path below the folder that holds all of them."""
    # `plain`, as a signature in an address is for no one to read
    paths = [remote.plain(file).replace(os.sep, "/").split("/") for file in files]
    if len({path[-1] for path in paths}) == len(paths):
        return [path[-1] for path in paths]
    levels = zip(*paths, strict=False)
    common = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
    return ["/".join(path[common:]) for path in paths]
