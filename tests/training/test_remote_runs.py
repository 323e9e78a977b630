"""Runs on data that lies elsewhere, too large to keep: killed, continued by other processes, and older
than readers."""

import os
import random
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from counted import counting_server, make_small, noise_shards
from processes import together
from rich.console import Console
from runs import assert_nearly_same_weights, assert_same_run, read_json

from vitkit.data import Augmentation, Preprocessing, open_source
from vitkit.data.sources import stores
from vitkit.recipes import Data, Optim
from vitkit.system.span import Span
from vitkit.training import Occupied, run_recipe
from vitkit.training import data as training_data
from vitkit.training.data import readers_of
from vitkit.training.state.checkpoints import Earlier, checkpoints, step_of

WORKERS = 2


def run(recipe, run_dir):
    run_recipe(recipe, run_dir, "cpu", Console(quiet=True))


def run_to_be_killed(recipe, run_dir, seconds):
    """The last rank is killed after so many seconds."""
    if os.environ["RANK"] == "1":
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    run(recipe, run_dir)


@pytest.fixture(scope="module")
def recipe(tiny, tmp_path_factory):
    """On shards of noise at an address, with half an epoch between checkpoints."""
    pytest.importorskip("aiohttp")
    shards = tmp_path_factory.mktemp("remote") / "shards"
    noise_shards(shards, each=128)
    with pytest.MonkeyPatch.context() as patch, counting_server(shards) as (address, _):
        make_small(patch)
        data = Data(
            source=f"{address}/train-{{000..003}}.tar",
            groups="none",
            preprocessing=Preprocessing(size=(8, 8)),
            augmentation=Augmentation(flip=True),
            workers=WORKERS,
        )
        yield replace(
            tiny,
            data=data,
            optim=Optim("sgd", lr=0.05, warmup=Span(5)),
            batch=24,
            micro_batch=6,
            length=Span(32),
            save_every=Span(8),
            evaluate_every=Span(32),
        )


class Undisturbed(NamedTuple):
    """A run of two ranks that nothing happened to."""

    run_dir: Path
    seconds: float
    """How long it took."""


@pytest.fixture(scope="module")
def undisturbed(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_CACHE", str(folder / "cache"))
        began = time.monotonic()
        assert together(2, run, recipe, folder / "run") == [0, 0]
        return Undisturbed(folder / "run", time.monotonic() - began)


@pytest.mark.slow
def test_killed_at_any_moment_two_ranks_end_with_the_same_bits(recipe, undisturbed, tmp_path):
    assert read_json(undisturbed.run_dir / "data.json")["readers"] == 2 * WORKERS
    moments = random.Random()
    run_dir = tmp_path / "run"
    while True:
        seconds = moments.uniform(0.2, 0.9) * undisturbed.seconds
        codes = together(2, run_to_be_killed, recipe, run_dir, seconds)
        if codes != [0, 0]:
            break
        assert_same_run(run_dir, undisturbed.run_dir)  # it was over before: begin another run
        shutil.rmtree(run_dir)
    assert codes[1] == -signal.SIGKILL
    assert together(2, run, recipe, run_dir) == [0, 0]
    assert_same_run(run_dir, undisturbed.run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (4, 1)])
def test_whoever_continues_goes_through_the_same_batches(
    recipe, undisturbed, tmp_path, ranks, workers
):
    """Other ranks and workers than those that the run began with: no image is seen twice, and the
    weights are those of the undisturbed run to rounding."""
    run_dir = tmp_path / "run"
    assert together(2, run_until_step, recipe, run_dir, 16) != [0, 0]
    other = replace(recipe, data=replace(recipe.data, workers=workers))
    if ranks == 1:
        run(other, run_dir)
    else:
        assert together(ranks, run, other, run_dir) == [0] * ranks
    assert read_json(run_dir / "data.json")["readers"] == 2 * WORKERS
    assert_nearly_same_weights(run_dir, undisturbed.run_dir)


def run_until_step(recipe, run_dir, step):
    """Ends like a kill as soon as there is a checkpoint of this step."""

    def watch():
        while not any(step_of(path) >= step for path in checkpoints(run_dir)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    run(recipe, run_dir)


def test_all_workers_of_all_ranks_are_readers(monkeypatch):
    monkeypatch.setattr(training_data, "is_elsewhere", lambda source: True)
    monkeypatch.setattr(training_data, "from_rank_0", lambda make: make())
    monkeypatch.setattr(training_data, "world", lambda: SimpleNamespace(world_size=2))
    source = SimpleNamespace(chunks=lambda: [0, 8])
    for workers, readers in ((3, 6), (1, 2), (0, 2)):
        data = SimpleNamespace(workers=workers)
        assert readers_of(source, data, Earlier({}, {}, trained=False)) == readers


@pytest.mark.slow
def test_how_many_readers_a_run_has(recipe, monkeypatch):
    """Those that it began with, which are its workers; one if it began before there were several, or if
    nothing is fetched in chunks."""
    data = replace(recipe.data, workers=3)
    source = open_source(data.source)
    new = Earlier({}, {}, trained=False)
    assert readers_of(source, data, new) == 3
    assert readers_of(source, replace(data, workers=0), new) == 1
    assert readers_of(source, data, Earlier({}, {}, trained=True)) == 1
    assert readers_of(source, data, Earlier({}, {"readers": 6}, trained=True)) == 6
    for wrong in ("6", 0, 1.5, None):
        with pytest.raises(Occupied, match=f"is {wrong!r}; it is a number of processes"):
            readers_of(source, data, Earlier({}, {"readers": wrong}, trained=True))

    monkeypatch.setattr(stores, "KEEP", 1 << 30)
    assert readers_of(source, data, new) == 1
