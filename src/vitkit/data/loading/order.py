"""The order of training: the batch at step t is a pure function of (seed, t), with any number of worker
processes.

The order concatenates the permutations of all epochs, and batch t is its positions (t - 1) B to t B. So
a batch may span two epochs, every example occurs once in each epoch, and B may be larger than the data
set.

Some examples can only be read in chunks (row groups of large parquet files, ranges of remote shards).
Then a permutation visits windows of several chunks. Which chunks form a window, and the order within
it, are random.

The permutation of very many examples that can be read individually is not stored, but computed by
position (`Scattered`).

If chunks must be fetched, several readers share them, so that each chunk is fetched once. A reader
fills the same rows of every batch, from chunks of its own. The order depends on the number of readers.
It is saved when a run begins, so a run that is continued with another number of processes sees the same
batches.

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

HELD = 1 << 24  # most examples whose permutation is stored (128 MB); larger ones are computed
ROUNDS = 8  # of the cipher that computes a permutation

# Purposes of streams of random numbers
SHUFFLE = 0
AUGMENT = 1


class Stream:
    """A stream of random numbers for each example in each epoch.

    Philox computes its numbers from a key and a counter. So each example has counters of its own, and its
    numbers can be drawn without drawing those of others.
    """

    def __init__(self, seed: int, purpose: int):
        self.bits = np.random.Philox(key=(seed, purpose))
        self.random = np.random.Generator(self.bits)
        self.state = self.bits.state

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """The generator at the first number of an example in an epoch. The next call resets it."""
        # The generator increments the first two words of its counter; the last two identify the epoch
        # and the example.
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

    chunks: the chunk of each example, int64 (N,), and the number of chunks in a window; None if examples
        are read individually.
    reader_at: the reader of each position of the epoch, (N,), counted from 0; None if there is one
        reader. Two readers share at most one chunk.
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

    # In the order of chunks, each reader takes as many examples as it has positions
    by_chunk = shuffled[np.argsort(places[shuffled], kind="stable")]
    reader_of = np.empty(count, dtype=np.int64)
    reader_of[by_chunk] = np.sort(reader_at)

    # Each reader visits its examples window by window
    in_turn = shuffled[np.lexsort((windows[shuffled], reader_of[shuffled]))]
    order = np.empty(count, dtype=np.int64)
    order[np.argsort(reader_at, kind="stable")] = in_turn
    return order


class Scattered:
    """A permutation of `count` examples in an epoch that takes no memory: `[positions]` computes the
    examples at these positions.

    It is a Feistel network. A position is two digits in base m, and each round adds a hash of one digit to
    the other, which can be inverted whatever the hash. So the network permutes the m * m numbers, where m
    is the smallest with m * m >= count. A number that is not an example is permuted again until it is one
    (cycle walking), which gives a permutation of the examples (Black and Rogaway 2002).
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
        """Apply all rounds once."""
        left, right = np.divmod(numbers, self.base)
        for key in self.keys:
            left, right = right, (left + _hash(right ^ key) % self.base) % self.base
        return left * self.base + right


def _hash(numbers: np.ndarray) -> np.ndarray:
    """The last step of SplitMix64: every bit of the result depends on every bit of the number."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The (epoch, example) of each row of every step after `after`: int64 (rows, 2). Endless.

    It is iterated in the main process, for all workers.
    """

    source: Source
    batch: int
    seed: int
    rank_rows: range
    """The rows of a batch that this rank builds."""
    after: int
    readers: int = 1
    """Number of readers that share the chunks of a source with chunks: at most one for each row of a
    batch."""

    def __iter__(self) -> Iterator[np.ndarray]:
        count = len(self.source)
        orders: dict[int, np.ndarray | Scattered] = {}
        for step in itertools.count(self.after):
            # The positions of the batch in the concatenated epochs
            positions = step * self.batch + np.arange(self.rank_rows.start, self.rank_rows.stop)
            epochs, positions = np.divmod(positions, count)

            # The examples at these positions
            rows = np.stack([epochs, positions], axis=1)
            for epoch in np.unique(epochs).tolist():
                if epoch not in orders:  # the previous epoch is over
                    orders = {epoch: self._order(epoch)}
                in_epoch = epochs == epoch
                rows[in_epoch, 1] = orders[epoch][positions[in_epoch]]
            yield rows

    def chunks_in_use(self, rows: range) -> int:
        """Number of chunks that a process which builds these rows of every batch must keep: the windows of
        their readers. With several readers there is room for two windows each, because the last window of
        one reader must not displace the current window of another."""
        readers = len(np.unique(self._reader_of_row[rows.start : rows.stop]))
        assert self._chunks is not None  # because its rows have readers
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
        """The source's chunks. The readers fill batches together, so each has a part of the window."""
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
    """The rows of every batch that a rank builds. Raises VitkitError if the batch cannot be divided
    equally."""
    rank, world_size = share
    if batch < 1 or not 0 <= rank < world_size or batch % world_size:
        raise BadSettings(
            f"a batch of {batch} cannot be shared equally: this is rank {rank} of {world_size}"
        )
    rows = batch // world_size
    return range(rows * rank, rows * (rank + 1))


def split(rows: range, parts: int) -> list[range]:
    """Split rows into consecutive parts of nearly equal length. Splitting a batch among ranks and then
    among the workers of each is the same as splitting it among all workers."""
    ends = [rows.start + len(rows) * part // parts for part in range(parts + 1)]
    return [range(start, end) for start, end in itertools.pairwise(ends)]
