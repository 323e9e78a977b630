"""For stores that are read in chunks (row groups of parquet files, ranges of shards), of which each
process keeps a few.

A store of at most KEEP bytes is read once, whole, before worker processes are forked, and any order
is as good as another. Of a larger one a process keeps a window of chunks, and the order of training
goes from window to window (see order.py).
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vitkit.system.console.progress import bar
from vitkit.system.storage import remote

KEEP = 2 << 30  # bytes: smaller stores are kept in memory, compressed as they are
WINDOW = 512 << 20  # bytes of larger ones that a process keeps
LEAST = 4  # chunks in a window, however large they are


def window(size: int, count: int) -> int:
    """How many of `count` chunks, `size` bytes in all, make a window."""
    fitting = WINDOW * count // max(size, 1)
    return max(LEAST, fitting)


def cached(cache: OrderedDict, key: int, load: Callable, most: int | None):
    """load(key), or what it returned before.

    The cache keeps the results of the `most` keys that were used last; None keeps all.
    """
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
    """What to call each file: its name, or if two have the same, its path below the folder that
    holds all of them."""
    # A query in an address may hold a signature, which is not for people to read
    paths = [remote.without_query(file).replace(os.sep, "/").split("/") for file in files]
    names = [path[-1] for path in paths]
    if len(set(names)) == len(names):
        return names
    common = 0  # folders that all paths begin with
    for folders in zip(*paths, strict=False):
        if len(set(folders)) > 1:
            break
        common += 1
    return ["/".join(path[common:]) for path in paths]
