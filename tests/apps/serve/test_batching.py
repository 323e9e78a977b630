"""Jobs of many threads, done in batches by one."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import pytest

from vitkit.apps.serve.batching import Batcher, Job

LONG = 60  # seconds that no test waits


class Bench:
    """A batcher whose batches are written down, and can be held back."""

    def __init__(self, batch=4, delay=LONG):
        self.batches = []
        self.done = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.batcher = Batcher(self.compute, batch, delay)

    def compute(self, given):
        assert self.may_go.wait(LONG)
        self.batches.append(list(given))
        if "bad" in given:
            raise RuntimeError("out of order")
        return [f"{each}!" for each in given]

    def put(self, *names):
        """Jobs that were expected; their futures."""
        futures = [Future() for _ in names]
        for name, future in zip(names, futures, strict=True):
            self.batcher.put(Job(name, future, lambda name=name: self.done.append(name)))
        return futures


@pytest.fixture
def bench():
    benches = []

    def make(**settings):
        benches.append(Bench(**settings))
        return benches[-1]

    yield make
    for each in benches:
        each.may_go.set()
        each.batcher.expect(-each.batcher.expected)
        each.batcher.close()
        assert not each.batcher.thread.is_alive()


def test_somebody_alone_never_waits(bench):
    bench = bench()
    bench.batcher.expect(1)
    (answer,) = bench.put("a")
    assert answer.result(LONG / 2) == "a!"


def test_a_batch_waits_for_those_that_are_expected_and_no_longer(bench):
    bench = bench(delay=LONG)
    bench.batcher.expect(3)
    answers = bench.put("a", "b")
    time.sleep(0.05)
    assert not bench.batches
    bench.batcher.expect(-1)  # the third will not come: it cannot be read
    assert [answer.result(LONG / 2) for answer in answers] == ["a!", "b!"]
    assert bench.batches == [["a", "b"]]


def test_a_batch_waits_for_its_delay_at_most(bench):
    bench = bench(delay=0.05)
    bench.batcher.expect(2)
    began = time.monotonic()
    (answer,) = bench.put("a")
    assert answer.result(LONG) == "a!"
    assert time.monotonic() - began >= 0.05


def test_a_full_batch_does_not_wait_and_what_comes_meanwhile_is_the_next(bench):
    bench = bench(batch=2)
    bench.may_go.clear()
    bench.batcher.expect(6)
    answers = bench.put("a", "b")
    while bench.batcher.busy_since is None:
        time.sleep(0.001)
    answers += bench.put("c", "d", "e")
    bench.batcher.expect(-1)
    bench.may_go.set()
    assert [answer.result(LONG) for answer in answers] == ["a!", "b!", "c!", "d!", "e!"]
    assert bench.batches == [["a", "b"], ["c", "d"], ["e"]]


def test_a_job_that_is_taken_back_is_not_done_and_all_are_done_with_once(bench):
    bench = bench(batch=8)
    bench.batcher.expect(4)
    answers = bench.put("a", "b", "c")
    assert answers[1].cancel()
    answers += bench.put("d")
    assert [answers[i].result(LONG) for i in (0, 2, 3)] == ["a!", "c!", "d!"]
    assert bench.batches == [["a", "c", "d"]]
    bench.batcher.close()
    assert sorted(bench.done) == ["a", "b", "c", "d"]


def test_an_error_is_the_answer_of_its_batch_alone(bench):
    bench = bench(batch=2)
    bench.batcher.expect(4)
    answers = bench.put("a", "bad", "c", "d")
    for answer in answers[:2]:
        with pytest.raises(RuntimeError, match="out of order"):
            answer.result(LONG)
    assert answers[3].result(LONG) == "d!"
    bench.batcher.close()
    assert len(bench.done) == 4


def test_closing_does_what_is_there_and_what_is_on_its_way(bench):
    bench = bench(delay=0)
    bench.may_go.clear()
    bench.batcher.expect(3)
    answers = bench.put("a", "b")
    closing = threading.Thread(target=bench.batcher.close)
    closing.start()
    answers += bench.put("c")
    bench.may_go.set()
    closing.join(LONG)
    assert [answer.result(0) for answer in answers] == ["a!", "b!", "c!"]


def test_jobs_of_many_threads_have_an_answer_each_and_their_own(bench):
    bench = bench(batch=7, delay=0.001)

    def ask(number):
        bench.batcher.expect(1)
        (answer,) = bench.put(number)
        return answer.result(LONG)

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(ask, range(500)))
    assert answers == [f"{number}!" for number in range(500)]
    assert sorted(chain.from_iterable(bench.batches)) == list(range(500))
    assert max(map(len, bench.batches)) <= 7
