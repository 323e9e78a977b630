"""What is fetched of data that lies elsewhere, counted by its server."""

from contextlib import closing
from itertools import islice

import pytest
from counted import SHARDS, counting_server, make_small, noise_shards
from margins import at_most
from processes import together

from vitkit.data import (
    Augmentation,
    Preprocessing,
    check_images,
    eval_batches,
    look_at,
    open_source,
    train_batches,
)
from vitkit.system.processes.ranks import process_group, world

PLAIN = Augmentation(crop="none")
TO = Preprocessing(size=(8, 8))
SHAPES = [(1, 4), (2, 2), (4, 1)]
BATCH = 16


@pytest.fixture
def served(tmp_path, monkeypatch):
    """(address of all shards, their bytes, function that returns the bytes sent)"""
    pytest.importorskip("aiohttp")
    make_small(monkeypatch)
    size = noise_shards(tmp_path / "shards")
    with counting_server(tmp_path / "shards") as (address, sent):
        yield f"{address}/train-{{000..{SHARDS - 1:03}}}.tar", size, sent


def train_epochs(address: str, folder, workers: int, epochs: int) -> None:
    """Go through the data; the examples that each rank has seen are left in files."""
    with process_group("cpu"):
        source = open_source(address)
        rank, ranks = world()
        readers = ranks * workers
        batches = train_batches(
            source, PLAIN, TO, BATCH, 0, 0, workers, (rank, ranks), readers=readers
        )
        seen = []
        with closing(batches):
            for batch in islice(batches, epochs * len(source) // BATCH):
                seen += batch.indices.tolist()
        (folder / f"{rank}.txt").write_text(" ".join(map(str, seen)))


def seen(folder) -> list[int]:
    """The examples that ranks have left, sorted."""
    examples = []
    for file in folder.glob("*.txt"):
        examples += map(int, file.read_text().split())
    return sorted(examples)


@pytest.mark.parametrize(("ranks", "workers"), SHAPES)
@pytest.mark.slow
def test_an_epoch_fetches_the_data_once(served, tmp_path, ranks, workers):
    address, size, sent = served
    count = len(open_source(address))
    before = sent()
    epochs = 2
    assert together(ranks, train_epochs, address, tmp_path, workers, epochs) == [0] * ranks
    at_most(abs((sent() - before) / size / epochs - 1), 0.1)
    assert seen(tmp_path) == sorted(list(range(count)) * epochs)


def evaluate(address: str, folder, workers: int) -> None:
    with process_group("cpu"):
        source = open_source(address)
        batches = eval_batches(source, TO, BATCH, workers, tuple(world()))
        own = []
        for batch in batches:
            own += batch.indices[batch.real].tolist()
            assert batch.targets[batch.real].tolist() == [
                i % 5 for i in batch.indices[batch.real].tolist()
            ]
        (folder / f"{world().rank}.txt").write_text(" ".join(map(str, own)))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "workers"), SHAPES)
def test_an_evaluation_fetches_the_data_once(served, tmp_path, ranks, workers):
    address, size, sent = served
    count = len(open_source(address))
    before = sent()
    assert together(ranks, evaluate, address, tmp_path, workers) == [0] * ranks
    at_most(abs((sent() - before) / size - 1), 0.1)
    assert seen(tmp_path) == list(range(count))


@pytest.mark.slow
def test_the_check_of_images_fetches_the_data_once(served):
    address, size, sent = served
    source = open_source(address)
    before = sent()
    assert check_images(source, 4, progress=False) == []
    assert 0.9 < (sent() - before) / size < 1.1


def test_a_look_at_some_images_fetches_these_alone(served):
    address, _, sent = served
    source = open_source(address)
    before = sent()
    assert look_at(source).channels == 3
    assert sent() - before < 8 * 3500
    assert source[700] == source.a_few()[700]
