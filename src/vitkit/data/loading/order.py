"""The order of training: the batch at step t is a pure function of (seed, t), whatever the number of
worker processes.

The order is the permutations of all epochs end to end, and batch t is positions (t - 1) B to t B of
it: epochs have no seam, every example comes once in each, and B may be larger than the data set.

Where examples can only be read many together (row groups of large parquet files, remote shards), a
permutation goes through windows of some of these chunks: which chunks meet in a window, and the
order inside it, are random.

A permutation of very many examples, each of which can be read alone, is not held in memory: which
example is at a position is computed (`Scattered`).

Where such chunks have to be fetched, several readers share them, so that each is fetched once. A
reader has the same rows of every batch, and chunks of its own to fill them from. Readers are a part
of the order: how many there are is written down when a run begins, and whoever continues it, with
any number of processes, goes through the same batches.

Legend: B batch, N examples, R readers.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vitkit.data.sources.source import Source
from vitkit.system.errors import BadSettings

HELD = 1 << 24  # examples whose permutation is held in memory, as it always was: 128 MB
ROUNDS = 8  # of the cipher by which more of them are ordered

# What a stream of random numbers is for.
SHUFFLE = 0
AUGMENT = 1


class Stream:
    """A stream of random numbers for each example in each epoch.

    Philox makes its numbers from a key and a counter, so numbers at other counters are other
    numbers, and none has to be drawn to reach the next.
    """

    def __init__(self, seed: int, purpose: int):
        self.bits = np.random.Philox(key=(seed, purpose))
        self.random = np.random.Generator(self.bits)
        self.state = self.bits.state

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """The generator, at the beginning of what an example in an epoch has. To be used up before
        the next call."""
        # The generator counts up in the first two words; the last two are the epoch's and the
        # example's own.
        self.state["state"]["counter"][:] = 0, 0, epoch, index
        self.bits.state = self.state
        return self.random


def permutation(
    count: int,
    seed: int,
    epoch: int,
    chunks: tuple[np.ndarray, int] | None = None,
    reader_at: np.ndarray | None = None,
) -> np.ndarray:
    """The permutation of `count` examples in an epoch, counted from 0: int64 (N,).

    chunks: which chunk each example lies in, int64 (N,), and how many of them make a window; None
    if each is read alone.
    reader_at: which reader each position of the epoch belongs to, (N,), numbered from 0; None if
    there is one. Two readers have at most one chunk in common.
    """
    random = Stream(seed, SHUFFLE).at(epoch, 0)
    shuffled = random.permutation(count)
    if chunks is None:
        return shuffled
    chunk_of, chunks_in_window = chunks
    place_of_chunk = random.permutation(int(chunk_of.max()) + 1)
    places = place_of_chunk[chunk_of]
    windows = places // chunks_in_window
    if reader_at is None:
        return shuffled[np.argsort(windows[shuffled], kind="stable")]

    # Chunk after chunk, each reader takes as many examples as it has positions
    by_chunk = shuffled[np.argsort(places[shuffled], kind="stable")]
    reader_of = np.empty(count, dtype=np.int64)
    reader_of[by_chunk] = np.sort(reader_at)

    # Each goes through its own window by window
    in_turn = shuffled[np.lexsort((windows[shuffled], reader_of[shuffled]))]
    order = np.empty(count, dtype=np.int64)
    order[np.argsort(reader_at, kind="stable")] = in_turn
    return order


class Scattered:
    """A permutation of `count` examples in an epoch that takes no memory: `[positions]` computes
    which examples are there.

    A Feistel network: a position is two digits to the base m, and in each round one of them is moved
    on by a hash of the other, which can be undone, whatever the hash. So it is a permutation of the
    m * m numbers; m is the least with m * m >= count, and a number that is no example is put through
    again until it is one (cycle walking), which is a permutation of the examples (Black and Rogaway
    2002).
    """

    def __init__(self, count: int, seed: int, epoch: int):
        self.count = count
        self.base = np.uint64(math.isqrt(count - 1) + 1)
        random = Stream(seed, SHUFFLE).at(epoch, 0)
        self.keys = random.integers(0, 1 << 64, ROUNDS, np.uint64)

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """int64 (n,) -> int64 (n,)."""
        numbers = self._through(positions.astype(np.uint64))
        while (outside := numbers >= self.count).any():
            numbers[outside] = self._through(numbers[outside])
        return numbers.astype(np.int64)

    def _through(self, numbers: np.ndarray) -> np.ndarray:
        """All rounds, once."""
        left, right = np.divmod(numbers, self.base)
        for key in self.keys:
            left, right = right, (left + _hash(right ^ key) % self.base) % self.base
        return left * self.base + right


def _hash(numbers: np.ndarray) -> np.ndarray:
    """Every bit of a result depends on every bit of its number: SplitMix64's last step."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """For every step after `after`, the (epoch, example) of each row: int64 (rows, 2). Endless.

    Made in the main process, for all workers.
    """

    source: Source
    batch: int
    seed: int
    rank_rows: range
    """The rows of a batch that this rank builds."""
    after: int
    readers: int = 1
    """Among how many readers the chunks of a source are shared, if it has chunks: at most one for
    each row of a batch."""

    def __iter__(self) -> Iterator[np.ndarray]:
        count = len(self.source)
        orders: dict[int, np.ndarray | Scattered] = {}
        for step in itertools.count(self.after):
            # Where in the endless row of epochs the batch lies.
            positions = step * self.batch + np.arange(self.rank_rows.start, self.rank_rows.stop)
            epochs, positions = np.divmod(positions, count)

            # Which examples these are.
            rows = np.stack([epochs, positions], axis=1)
            for epoch in np.unique(epochs).tolist():
                if epoch not in orders:  # the one before is over
                    orders = {epoch: self._order(epoch)}
                in_epoch = epochs == epoch
                rows[in_epoch, 1] = orders[epoch][positions[in_epoch]]
            yield rows

    def chunks_in_use(self, rows: range) -> int:
        """How many chunks a process that builds these rows of every batch has to keep: the windows of
        their readers. If it does the work of several, the windows that some have just left are still
        there, and must not drive out what others need, so it has room for both."""
        readers = len(np.unique(self._reader_of_row[rows.start : rows.stop]))
        assert self._chunks is not None  # its rows have readers
        in_window = self._chunks[1]
        if readers == 1:
            return in_window
        return 2 * readers * in_window

    def _order(self, epoch: int) -> np.ndarray | Scattered:
        """The permutation of an epoch."""
        count = len(self.source)
        if self._chunks is None and count > HELD:
            return Scattered(count, self.seed, epoch)
        reader_at = None
        if self._chunks is not None and self.readers > 1:
            rows = (epoch * count + np.arange(count)) % self.batch
            reader_at = self._reader_of_row[rows]
        return permutation(count, self.seed, epoch, self._chunks, reader_at)

    @cached_property
    def _chunks(self) -> tuple[np.ndarray, int] | None:
        """As the source has them. A window is divided among the readers, who fill batches
        together."""
        chunks = self.source.chunks()
        if chunks is None:
            return None
        chunk_of, chunks_in_window = chunks
        return chunk_of, -(-chunks_in_window // self.readers)

    @cached_property
    def _reader_of_row(self) -> np.ndarray:
        """The reader of each row of a batch: (B,)."""
        return np.repeat(
            np.arange(self.readers), [len(rows) for rows in split(range(self.batch), self.readers)]
        )


def rank_rows(batch: int, share: tuple[int, int]) -> range:
    """The rows of every batch that a rank builds. Raises VitkitError if they cannot be divided
    equally."""
    rank, world_size = share
    if batch < 1 or not 0 <= rank < world_size or batch % world_size:
        raise BadSettings(
            f"a batch of {batch} cannot be shared equally: this is rank {rank} of {world_size}"
        )
    rows = batch // world_size
    return range(rows * rank, rows * (rank + 1))


def split(rows: range, parts: int) -> list[range]:
    """Rows in this many consecutive parts, as equal as possible. Those of a rank's rows among
    its workers are those of the batch among all workers."""
    ends = [rows.start + len(rows) * part // parts for part in range(parts + 1)]
    return [range(start, end) for start, end in itertools.pairwise(ends)]
