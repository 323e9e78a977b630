"""The order of training: what readers share, and what no number of processes changes."""

from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
import torch
from stored import write_parquet

from vitkit.data import Augmentation, Preprocessing, Source, open_source, train_batches
from vitkit.data.loading.order import TrainingRows, permutation, rank_rows, split
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


@pytest.mark.parametrize(("workers", "batch"), [(0, 6), (3, 6), (3, 5), (4, 3)])
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
