"""The order of training, and the random numbers of each example: functions of a seed, whatever the
batch and the workers.

Where examples can only be read many together (row groups of large parquet files, remote shards), a
permutation goes through windows of some of these chunks: which chunks meet in a window, and the
order inside it, are random.

Legend: B batch, N examples.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vitkit.data.sources.source import Source

# What a stream of random numbers is for.
SHUFFLE = 0
AUGMENT = 1


class Stream:
    """Random numbers of their own for every example in every epoch.

    Philox makes its numbers from a key and a counter, so numbers at other counters are other
    numbers, and none has to be drawn to reach the next.
    """

    def __init__(self, seed: int, purpose: int):
        self.bits = np.random.Philox(key=(seed, purpose))
        self.random = np.random.Generator(self.bits)
        self.state = self.bits.state

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """The generator, at the beginning of what an example in an epoch has.

        To be used up before the next call.
        """
        # The generator counts up in the first two words; the last two are the epoch's and the
        # example's own.
        self.state["state"]["counter"][:] = 0, 0, epoch, index
        self.bits.state = self.state
        return self.random


def permutation(
    count: int, seed: int, epoch: int, chunks: tuple[np.ndarray, int] | None = None
) -> np.ndarray:
    """The permutation of `count` examples in an epoch, counted from 0: int64 (N,).

    chunks: which chunk each example lies in, int64 (N,), and how many of them make a window; None
    if each is read alone.
    """
    random = Stream(seed, SHUFFLE).at(epoch, 0)
    shuffled = random.permutation(count)
    if chunks is None:
        return shuffled
    chunk_of, chunks_in_window = chunks
    place_of_chunk = random.permutation(int(chunk_of.max()) + 1)
    window_of = place_of_chunk[chunk_of] // chunks_in_window
    return shuffled[np.argsort(window_of[shuffled], kind="stable")]


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

    def __iter__(self) -> Iterator[np.ndarray]:
        count = len(self.source)
        chunks = self.source.chunks()
        orders: dict[int, np.ndarray] = {}
        for step in itertools.count(self.after):
            # Where in the endless row of epochs the batch lies.
            positions = step * self.batch + np.arange(self.rank_rows.start, self.rank_rows.stop)
            epochs, positions = np.divmod(positions, count)

            # Which examples these are.
            rows = np.stack([epochs, positions], axis=1)
            for epoch in np.unique(epochs).tolist():
                if epoch not in orders:  # the one before is over
                    orders = {epoch: permutation(count, self.seed, epoch, chunks)}
                in_epoch = epochs == epoch
                rows[in_epoch, 1] = orders[epoch][positions[in_epoch]]
            yield rows
