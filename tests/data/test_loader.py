"""Batches are a function of (seed, step); every example counts once; workers change nothing and
leave nothing behind."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photograph
from torch.utils.data._utils import signal_handling

from vitkit.data import (
    Augmentation,
    Preprocessing,
    Source,
    default_workers,
    eval_batches,
    one_per_cpu,
    open_source,
    open_splits,
    subset,
    train_batches,
)
from vitkit.data.loading import batches as loader
from vitkit.data.loading import resident, workers
from vitkit.data.loading.order import Stream
from vitkit.data.sources.stores import Arrays
from vitkit.system.console.messages import heard_by
from vitkit.system.errors import BadImage, WorkerDied

TO = Preprocessing(size=(16, 16))
PLAIN = Augmentation(crop="none", flip=False)


def numbers(count: int) -> Source:
    """Examples whose pixels say which they are."""
    images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 4, 4)).copy()
    return Source(
        Arrays("numbers", images), np.arange(count), np.arange(count) % 3, ("a", "b", "c")
    )


@pytest.fixture
def photographs(tmp_path) -> Source:
    for i in range(23):
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photograph(40 + i, 60 - i, i)))
    return open_source(str(tmp_path / "photos"))


def take(count: int, *args, **settings) -> list:
    with contextlib.closing(train_batches(*args, **settings)) as batches:
        return list(itertools.islice(batches, count))


def same(first, second) -> bool:
    return all(
        torch.equal(ours, theirs)
        for one, other in zip(first, second, strict=True)
        for ours, theirs in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(Augmentation(), marks=pytest.mark.slow),
        Augmentation(crop="pad_crop", rand_augment=(2, 9)),
    ],
)
def test_neither_the_number_of_workers_nor_where_a_run_begins_changes_a_batch(photographs, how):
    alone = take(6, photographs, how, TO, 5, 3, 0, 0)
    assert same(alone, take(6, photographs, how, TO, 5, 3, 0, 1))
    assert same(alone[2:], take(4, photographs, how, TO, 5, 3, 2, 4))
    assert same(alone[5:], take(1, photographs, how, TO, 5, 3, 5, 0))
    assert not same(alone, take(6, photographs, how, TO, 5, 4, 0, 0))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_may_be_started_either_way(photographs, monkeypatch, start):
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {start}")
    monkeypatch.setattr(workers, "START", start)
    assert same(
        take(2, photographs, Augmentation(), TO, 5, 3, 0, 2),
        take(2, photographs, Augmentation(), TO, 5, 3, 0, 0),
    )


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 20),
    batch=st.integers(1, 30),
    seed=st.integers(0, 2**40),
    after=st.integers(0, 10**9),
)
def test_every_example_comes_once_an_epoch_whatever_the_batch(count, batch, seed, after):
    source = numbers(count)
    steps = 2 * count // batch + 3
    batches = take(steps, source, PLAIN, TO, batch, seed, after, 0)
    indices = torch.cat([one.indices for one in batches]).numpy()
    first = -(after * batch) % count  # where the first whole epoch begins
    for start in range(first, len(indices) - count + 1, count):
        assert sorted(indices[start : start + count]) == list(range(count))
    for one in batches:
        assert one.images.shape == (batch, 3, 16, 16) and one.images.dtype == torch.uint8
        assert torch.equal(one.images[:, 0, 0, 0], one.indices.to(torch.uint8))
        assert one.targets.dtype == one.indices.dtype == torch.int64
        assert torch.equal(one.targets, one.indices % 3)
        assert one.real.all()


def test_epochs_are_shuffled_apart_and_examples_augmented_anew():
    source = numbers(50)
    orders = [one.indices.tolist() for one in take(3, source, PLAIN, TO, 50, 0, 0, 0)]
    assert len({tuple(order) for order in orders}) == 3 and orders[0] != list(range(50))
    ramp = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    one = Source(Arrays("one", ramp), np.zeros(1, np.int64), np.zeros(1, np.int64), ("a",))
    batches = take(20, one, Augmentation(), TO, 1, 0, 0, 0)
    assert len({batch.images.numpy().tobytes() for batch in batches}) > 15


def test_ranks_together_see_what_one_would(photographs):
    arguments = (photographs, Augmentation(), TO, 6, 1, 0, 0)
    whole = take(3, *arguments)
    parts = [take(3, *arguments, share=(rank, 3)) for rank in range(3)]
    for batch, *of_ranks in zip(whole, *parts, strict=True):
        for field, *of_fields in zip(batch, *of_ranks, strict=True):
            assert torch.equal(torch.cat(of_fields), field)


def test_ranks_together_evaluate_every_example_once(photographs):
    first, second = (list(eval_batches(photographs, TO, 10, 0, share=(r, 2))) for r in range(2))
    assert len(first) == len(second) == 3
    indices = torch.cat([batch.indices[batch.real] for batch in first + second])
    assert sorted(indices.tolist()) == list(range(23))


@pytest.mark.parametrize("count", [0, 2])
def test_evaluation_sees_every_example_once_and_can_be_repeated(photographs, count):
    batches = eval_batches(photographs, TO, 10, count)
    assert len(batches) == 3
    first, again = list(batches), list(batches)
    assert same(first, again)
    assert [batch.real.sum().item() for batch in first] == [10, 10, 3]
    indices = torch.cat([batch.indices[batch.real] for batch in first])
    targets = torch.cat([batch.targets[batch.real] for batch in first])
    assert indices.tolist() == list(range(23))
    assert targets.tolist() == photographs.targets.tolist()
    assert all(len(batch.images) == 10 for batch in first) and not first[2].images[3:].any()


@pytest.mark.parametrize("count", [0, 2])
def test_a_bad_image_reaches_the_user_as_one_sentence(photographs, tmp_path, count):
    (tmp_path / "photos/b/07.jpg").write_bytes(encoded(photograph(40, 40))[:300])
    for batches in (
        train_batches(photographs, Augmentation(), TO, 5, 0, 0, count),
        eval_batches(photographs, TO, 5, count),
    ):
        with pytest.raises(BadImage, match=r"^[^\n]*photos/b/07\.jpg cannot be decoded: [^\n]*$"):
            list(itertools.islice(batches, 10))
    deadline = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


def test_closing_or_forgetting_the_batches_ends_their_workers(photographs):
    batches = train_batches(photographs, Augmentation(), TO, 5, 0, 0, 2)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert not multiprocessing.active_children()
    batches = train_batches(photographs, Augmentation(), TO, 5, 0, 0, 2)
    next(batches)
    del batches
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_killed_worker_is_one_sentence(photographs):
    batches = train_batches(photographs, Augmentation(), TO, 5, 0, 0, 1)
    next(batches)
    pid = multiprocessing.active_children()[0].pid
    os.kill(pid, signal.SIGSTOP)  # so that it is waited for when it dies
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(
        RuntimeError,
        match=r"^a process .* was killed.*fewer `workers` .* than 1[^\n]*$",
    ):
        for _ in range(1000):
            next(batches)


def test_a_killed_worker_is_no_error_of_a_connection(photographs, monkeypatch):
    """One that dies while its images are fetched resets the socket that they came through."""

    def started(*_):
        raise ConnectionResetError(104, "Connection reset by peer")
        yield

    monkeypatch.setattr(workers, "_started", started)
    with pytest.raises(WorkerDied) as caught:
        next(train_batches(photographs, Augmentation(), TO, 5, 0, 0, 1))
    assert "reset" not in str(caught.value)


def test_workers_leave_the_handler_of_dead_children_alone(photographs, monkeypatch):
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)  # as in a new process
    before = signal.getsignal(signal.SIGCHLD)
    take(1, photographs, Augmentation(), TO, 5, 3, 0, 1)
    assert signal.getsignal(signal.SIGCHLD) == before


def slow(item):
    if item:
        time.sleep(60)
    return os.getpid()


def waiting_for_a_worker(sender):
    items = workers.in_order(slow, range(2), 1)
    sender.send(next(items))
    next(items)


def test_workers_end_with_a_main_process_that_is_killed():
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    main = multiprocessing.get_context("fork").Process(target=waiting_for_a_worker, args=(sender,))
    main.start()
    worker = Path("/proc", str(receiver.recv()), "cmdline")
    assert worker.exists()
    main.kill()
    main.join()
    deadline = time.monotonic() + 10
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(worker)


def evaluation_in(source, count):
    said = []
    with heard_by(said.append):
        batches = list(eval_batches(source, TO, 5, count))
        batches += eval_batches(source, TO, 5, count)
    return default_workers(source), one_per_cpu(), [batch.images.numpy() for batch in batches], said


def test_a_daemonic_process_prepares_its_images_itself(photographs):
    """Such as those of multiprocessing.Pool, which must not start any."""
    expected = [batch.images.numpy() for batch in eval_batches(photographs, TO, 5, 0)] * 2
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for count in (0, 2):
            default, most, images, said = pool.apply(evaluation_in, (photographs, count))
            assert default == most == 0
            assert all(map(np.array_equal, images, expected))
        (sentence,) = said  # where workers were asked for, once
        assert sentence.startswith("this process is daemonic")
        assert pool.apply(lengths_in_child, (["abc"],)) == [3]


def lengths_in_child(texts):
    return list(workers.in_child(len, texts))


def _runs(command_line: Path) -> bool:
    """Whether a process runs, by its command line in /proc, which a zombie does not have."""
    try:
        return bool(command_line.read_bytes())
    except FileNotFoundError:
        return False


def test_workers_outlive_the_signals_of_a_scheduler(photographs):
    batches = train_batches(photographs, Augmentation(), TO, 5, 0, 0, 1)
    next(batches)
    (worker,) = multiprocessing.active_children()
    for name in ("TERM", "INT", "USR1", "TERM"):  # SLURM sends it twice
        # By another process than the worker's own parent; the program `kill` may not be installed
        subprocess.run(["sh", "-c", f"kill -{name} {worker.pid}"], check=True)
    for _ in range(20):
        next(batches)
    assert worker.is_alive()
    with contextlib.suppress(RuntimeError):  # PyTorch may say here that a worker died
        worker.terminate()
        worker.join(10)
    assert not worker.is_alive()


def test_a_worker_leaves_every_signal_to_the_main_process(monkeypatch):
    ignored = []
    monkeypatch.setattr(signal, "signal", lambda number, how: ignored.append((number, how)))
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    workers._ignore_signals(os.getppid(), 0)
    names = ("SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP")
    assert ignored == [(getattr(signal, name), signal.SIG_IGN) for name in names]


def test_what_is_wrong_is_said_before_the_first_batch(photographs):
    too_small = Augmentation(crop="resize_crop", resize=8)
    for arguments, message in [
        ((too_small, TO, 5, 0, 0, 0), "resize is 8; a crop of 16 x 16 does not fit"),
        ((PLAIN, TO, 0, 0, 0, 0), "a batch of 0 cannot be shared equally"),
        ((PLAIN, TO, 5, -1, 0, 0), "seed is -1 and after is 0"),
        ((PLAIN, TO, 5, 0, 0, -2), "workers is -2"),
        ((PLAIN, TO, 5, 0, 0, 0, (0, 2)), "a batch of 5 cannot be shared .* rank 0 of 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            train_batches(photographs, *arguments)
    with pytest.raises(ValueError, match="there are no images to train on"):
        train_batches(subset(photographs, []), PLAIN, TO, 5, 0, 0, 0)


def test_shared_memory_must_hold_all_batches_that_are_prepared_ahead(monkeypatch):
    for free, enough in [(None, True), (9 << 20, True), ((9 << 20) - 1, False)]:
        monkeypatch.setattr(workers, "_shared_memory", lambda free=free: free)
        assert workers.fits_shared_memory(4, 1 << 20) == enough

    # The ranks of a machine share it
    monkeypatch.setattr(workers, "_shared_memory", lambda: 18 << 20)
    for ranks, enough in (("2", True), ("3", False)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert workers.fits_shared_memory(4, 1 << 20) == enough


def test_batches_travel_through_pipes_if_shared_memory_is_too_small(monkeypatch, photographs):
    how = (Augmentation(), TO, 5, 0, 0)
    through_memory = take(6, photographs, *how, 0)
    monkeypatch.setattr(resident, "forked", lambda: False)  # as where workers share no memory
    monkeypatch.setattr(workers, "_shared_memory", lambda: 1000)
    through_pipes = take(6, photographs, *how, 2)
    assert same(through_memory, through_pipes)
    with pytest.raises(BadImage, match="is empty"):
        broken = subset(photographs, range(3))
        monkeypatch.setattr(type(broken.store), "read", lambda self, row: b"")
        take(1, broken, *how, 2)


def test_the_default_is_the_quota_less_one(monkeypatch, photographs):
    for cpus, expected in [(1, 1), (2, 1), (8, 7), (200, loader.MAX_WORKERS)]:
        monkeypatch.setattr(loader, "cpus", lambda cpus=cpus: cpus)
        assert default_workers() == default_workers(photographs) == expected
    assert default_workers(open_splits("digits").train) == 0


def test_preparing_a_batch_leaves_the_threads_of_the_model_alone(photographs):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        take(1, photographs, Augmentation(), TO, 5, 0, 0, 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_stream_is_numpys_philox_at_a_counter():
    """What a run drew must never change: a checkpoint could not be continued."""
    stream = Stream(5, 1)
    for epoch, index in [(3, 77), (0, 0), (2**40, 2**62)]:
        fresh = np.random.Generator(np.random.Philox(key=(5, 1), counter=(0, 0, epoch, index)))
        random = stream.at(epoch, index)
        assert random.random() == fresh.random()
        assert random.integers(9, dtype=np.int32) == fresh.integers(9, dtype=np.int32)
        assert random.permutation(7).tolist() == fresh.permutation(7).tolist()


def test_memory_is_pinned_when_asked_and_not_because_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for count in (0, 1):
        trained = take(1, numbers(8), PLAIN, TO, 4, 0, 0, count)
        evaluated = list(eval_batches(numbers(8), TO, 4, count))
        assert not any(batch.images.is_pinned() for batch in trained + evaluated)
