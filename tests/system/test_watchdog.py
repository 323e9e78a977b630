"""What ranks say of one that does not answer, and what they share, through a store of one process."""

import time

import pytest
from torch.distributed import HashStore

from vitkit.system.processes import sharing
from vitkit.system.processes.watchdog import Watchdog, watchdog

ADVICE = (
    " for 20 s while the others waited; look there for a stalled disk, network or machine. "
    "The same command continues from the last checkpoint; `patience` waits longer"
)


@pytest.fixture
def slept(monkeypatch):
    """How long was slept, instead of sleeping."""
    seconds = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


@pytest.fixture
def third(slept):
    """The watchdog of the last of three ranks, after five steps."""
    dog = Watchdog()
    dog.begin(HashStore(), 2, 3, 20.0)
    dog.heartbeats = 5
    yield dog
    dog.end()


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ({}, "rank 0, rank 1 did not answer"),
        ({0: 5}, "rank 1 did not answer"),
        ({0: 5, 1: 4}, "rank 1 fell behind"),
        ({0: 4, 1: 4}, "rank 0, rank 1 fell behind"),
        ({0: 6, 1: 5}, "rank 1, rank 2 fell behind"),
        ({0: 5, 1: 5}, "no rank came further"),
    ],
)
def test_a_check_ranks_names_who_is_silent_or_behind(others, problem, third, slept):
    for rank, heartbeats in others.items():
        third.store.set(f"heartbeats/{rank}", str(heartbeats))
    assert third._check_ranks(third.store) == problem + ADVICE
    assert third.store.get("heartbeats/2") == b"5"  # it answers, too
    assert slept == [2.0]
    third.patience = 100.0
    third._check_ranks(third.store)
    assert slept[1] == 10.0


def test_one_rank_reports(third, capsys):
    third.store.set("heartbeats/0", "5")
    third._report()
    assert capsys.readouterr().err == f"vitkit: rank 1 did not answer{ADVICE}\n"
    third._report()  # another has said it
    assert capsys.readouterr().err == ""
    assert not third.first_to_report()
    alone = Watchdog()
    alone.begin(HashStore(), 0, 1, 20.0)
    assert alone.first_to_report()


class GoneStore(HashStore):
    """A store whose process has ended."""

    def set(self, key, value):
        raise RuntimeError("connection reset")


def test_a_store_that_is_gone_is_told(third, capsys):
    third.store = GoneStore()
    third._report()
    said = capsys.readouterr().err
    assert said.startswith("vitkit: rank 2 came no further for 20 s and cannot reach the others; ")


def test_heartbeats_count_and_a_pause_stops_the_clock():
    dog = Watchdog()
    for expected in (1, 2):
        before = time.monotonic()
        dog.heartbeat()
        assert dog.heartbeats == expected and before <= dog.last_heartbeat <= time.monotonic()
    dog.pause()
    assert dog.last_heartbeat == float("inf")
    dog.begin(HashStore(), 0, 2, 20.0)
    assert dog.heartbeats == 0 and not dog.stopped.is_set()
    dog.end()
    assert dog.stopped.is_set() and dog.store is None


# Work that one rank does for all


@pytest.fixture
def shared():
    """Two ranks that wait for each other for five seconds."""
    watchdog.begin(HashStore(), 0, 2, 5.0)
    yield
    watchdog.end()


def test_the_first_claims_and_the_others_take(shared, slept):
    assert sharing.ranks_sharing() == 2
    assert sharing.claim("index") and not sharing.claim("index") and sharing.claim("another")
    data = bytes(range(256)) * (sharing.PIECE // 256 * 2) + b"rest"  # of three pieces
    sharing.give("index", data)
    assert sharing.take("index", time.monotonic()) == data
    sharing.give("empty", b"")
    assert sharing.take("empty", time.monotonic()) == b""
    sharing.give("failed", None)
    assert sharing.take("failed", time.monotonic()) is None
    assert slept == []


def test_what_does_not_come_is_waited_for_so_long(shared, slept, monkeypatch):
    now = [100.0]

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert sharing.take("nothing", 100.0) is None
    assert slept[:3] == [0.02, 0.04, 0.08] and max(slept) == 1.0
    assert 105 < now[0] <= 106
    slept.clear()
    assert sharing.take("nothing", 100.0) is None  # the time is over
    assert slept == []


def test_alone_nobody_shares():
    assert sharing.ranks_sharing() == 1
