"""The order of training: what readers share, and what no number of processes changes."""

import tracemalloc
from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
import torch
from stored import write_parquet

from vitkit.data import Augmentation, Preprocessing, Source, open_source, permutation, train_batches
from vitkit.data.loading.order import HELD, Scattered, TrainingRows, rank_rows, split
from vitkit.data.sources import stores
from vitkit.data.sources.stores import ChunkCache

CHUNKS = 60
BATCH = 24
WINDOW = 6


class Chunked:
    """A store of numbers in chunks of 3 to 29."""

    chunk_of = np.repeat(np.arange(CHUNKS), np.random.default_rng(0).integers(3, 30, CHUNKS))

    def chunks(self, rows):
        return self.chunk_of[rows], WINDOW


def rows_of(readers: int, steps: int, world_size: int = 1, after: int = 0) -> np.ndarray:
    """(steps, BATCH, 2): what all ranks together build."""
    count = len(Chunked.chunk_of)
    source = Source(Chunked(), np.arange(count), np.zeros(count, np.int64), ("a",))
    of_ranks = []
    for rank in range(world_size):
        own = rank_rows(BATCH, (rank, world_size))
        rows = TrainingRows(source, BATCH, 3, own, after, readers)
        of_ranks.append([row for row, _ in zip(rows, range(steps), strict=False)])
    return np.concatenate(of_ranks, axis=1)


def test_old_runs_go_on_in_their_order():
    """Of local data, of data that fits into memory, and of runs that began before there were readers."""
    plain = permutation(1000, 5, 3)
    windows = permutation(1000, 5, 3, (np.arange(1000) // 30, 4))
    digests = [sha256(order.astype("<i8").tobytes()).hexdigest()[:16] for order in (plain, windows)]
    assert digests == ["d9e80c50a61cd663", "a20d3556d3f6aa70"]
    assert np.array_equal(windows, permutation(1000, 5, 3, (np.arange(1000) // 30, 4), None))
    one_reader = np.zeros(1000, np.int64)
    assert np.array_equal(windows, permutation(1000, 5, 3, (np.arange(1000) // 30, 4), one_reader))


@pytest.mark.parametrize("readers", [1, 2, 4, 5, 24])
def test_readers_share_chunks_and_every_example_comes_once(readers):
    count = len(Chunked.chunk_of)
    rows = rows_of(readers, 3 * count // BATCH).reshape(-1, 2)
    for epoch in (0, 1):
        examples = rows[rows[:, 0] == epoch, 1]
        assert sorted(examples) == list(range(count))
    assert not np.array_equal(rows[:count, 1], rows[count : 2 * count, 1])

    # Each chunk has one reader, but for those at the seams
    in_batch = np.arange(len(rows)) % BATCH
    own = [np.isin(in_batch, part) & (rows[:, 0] == 0) for part in split(range(BATCH), readers)]
    chunks = [set(Chunked.chunk_of[rows[mine, 1]]) for mine in own]
    assert sum(map(len, chunks)) <= CHUNKS + readers - 1

    # While a reader uses a chunk it uses few others
    window = -(-WINDOW // readers)
    for mine in own:
        visited = Chunked.chunk_of[rows[mine, 1]]
        for chunk in set(visited):
            visits = np.flatnonzero(visited == chunk)
            assert len(set(visited[visits[0] : visits[-1] + 1])) <= window


def test_any_number_of_ranks_goes_through_the_same_batches():
    """Also where it is not the number that the run began with, and from any step on."""
    whole = rows_of(4, 60)
    for world_size in (2, 3, 4):
        assert np.array_equal(rows_of(4, 60, world_size), whole)
    assert np.array_equal(rows_of(4, 20, 2, after=40), whole[40:])
    assert not np.array_equal(rows_of(2, 60), whole)


@pytest.mark.parametrize(
    ("readers", "processes"), [(4, 4), (4, 1), (4, 2), (2, 1), (6, 1), (24, 3)]
)
def test_chunks_stay_in_memory_while_they_are_in_use(readers, processes):
    """Also where a process does the work of several readers."""
    count = len(Chunked.chunk_of)
    source = Source(Chunked(), np.arange(count), np.zeros(count, np.int64), ("a",))
    rows = TrainingRows(source, BATCH, 3, range(BATCH), 0, readers)
    steps = [row for row, _ in zip(rows, range(count // BATCH), strict=False)]
    loads = Counter()
    for piece in split(range(BATCH), processes):
        cache = ChunkCache((), stores.KEEP + 1, (1, 1), limit=rows.chunks_in_use(piece))
        for step in steps:
            for example in step[piece.start : piece.stop, 1]:
                cache.get(int(Chunked.chunk_of[example]), lambda chunk: loads.update([chunk]))
    assert len(loads) == CHUNKS
    assert loads.total() <= CHUNKS + readers - 1


def test_workers_rows_are_those_of_readers():
    for batch, ranks, workers in [(48, 4, 3), (40, 2, 7), (10, 2, 3), (4096, 64, 15)]:
        of_readers = split(range(batch), ranks * workers)
        of_workers = []
        for rank in range(ranks):
            of_workers += split(rank_rows(batch, (rank, ranks)), workers)
        assert of_workers == of_readers


@pytest.mark.parametrize(
    ("workers", "batch"), [(0, 6), (3, 5), pytest.param(4, 3, marks=pytest.mark.slow)]
)
def test_batches_in_pieces_are_those_of_one_process(tmp_path, monkeypatch, workers, batch):
    source = open_source(write_parquet(tmp_path / "x.parquet"))
    for name, value in (("KEEP", 10), ("WINDOW", 10), ("LEAST", 3)):
        monkeypatch.setattr(stores, name, value)
    to = Preprocessing(size=(8, 9))
    made = train_batches(source, Augmentation(), to, batch, 0, 2, workers, readers=3)
    rows = iter(TrainingRows(source, batch, 0, range(batch), 2, 3))
    expected = train_batches(source, Augmentation(), to, batch, 0, 2, 0, readers=3)
    for _ in range(12):
        one, other = next(made), next(expected)
        for tensor, same in zip(one, other, strict=True):
            assert torch.equal(tensor, same)
        assert one.indices.tolist() == next(rows)[:, 1].tolist()
        assert one.real.all() and len(one.images) == batch
    made.close()


def test_readers_are_at_least_one_and_need_no_more_than_rows(tmp_path):
    source = open_source(write_parquet(tmp_path / "x.parquet"))
    to = Preprocessing(size=(8, 9))
    with pytest.raises(ValueError, match="readers is 0; it is 1 or more"):
        train_batches(source, Augmentation(), to, 4, 0, 0, 0, readers=0)
    batches = train_batches(source, Augmentation(), to, 4, 0, 0, 0, readers=100)
    assert len(next(batches).indices) == 4


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101, 10_007])
def test_an_order_that_is_computed_has_every_example_once(count):
    positions = np.arange(count)
    orders = [Scattered(count, seed, epoch)[positions] for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for examples in orders:
        assert examples.dtype == np.int64
        assert np.array_equal(np.sort(examples), positions)
    if count > 10:
        assert not np.array_equal(orders[0], orders[1])
        assert not np.array_equal(orders[0], orders[2])


def test_an_order_that_is_computed_is_random():
    """Neighbours are as far from each other as by chance, and each tenth of the positions has a tenth
    of each tenth of the examples: 100 counts of 1,000, with a chi-square of 81 degrees of freedom."""
    count = 100_000
    values = []
    for epoch in range(5):
        examples = Scattered(count, 3, epoch)[np.arange(count)]
        steps = np.abs(np.diff(examples))
        assert steps.mean() == pytest.approx(count / 3, rel=0.02)
        table = np.histogram2d(np.arange(count), examples, bins=10)[0]
        values.append(((table - 1000) ** 2 / 1000).sum())
    assert 60 < np.mean(values) < 105


class Huge:
    """A billion examples that take no memory."""

    def chunks(self):
        return None

    def __len__(self):
        return 10**9


def test_a_billion_examples_need_no_permutation_in_memory():
    """Batches over the end of an epoch, and the same ones for whoever continues."""
    tracemalloc.start()
    at_the_end = 10**9 // BATCH - 1
    rows = TrainingRows(Huge(), BATCH, 3, range(BATCH), at_the_end)
    batches = [batch for batch, _ in zip(rows, range(4), strict=False)]
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
    epochs = np.concatenate(batches)[:, 0]
    assert sorted(set(epochs)) == [0, 1]
    assert np.concatenate(batches)[:, 1].max() < 10**9
    continued = next(iter(TrainingRows(Huge(), BATCH, 3, range(BATCH), at_the_end + 3)))
    assert np.array_equal(continued, batches[3])


class Local(Huge):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def test_up_to_16_million_images_keep_the_order_that_they_had(monkeypatch):
    rows = next(iter(TrainingRows(Local(1000), BATCH, 5, range(BATCH), 0)))
    assert np.array_equal(rows[:, 1], permutation(1000, 5, 0)[:BATCH])
    assert HELD == 1 << 24
    monkeypatch.setattr("vitkit.data.loading.order.HELD", 1000)
    for count, kind in ((1000, np.ndarray), (1001, Scattered)):
        order = TrainingRows(Local(count), BATCH, 5, range(BATCH), 0)._order(0)
        assert isinstance(order, kind)
