"""A run that must end in a time: its schedule follows its pace, and a killed one the same plans."""

import signal
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from runs import read_json, same, weights

from vitkit.recipes import Optim
from vitkit.system.errors import Interrupted
from vitkit.system.processes.signals import leaving_signals
from vitkit.training import Deadline, Ends, loop, run_recipe, schedule
from vitkit.training.record.metrics import read_metrics
from vitkit.training.schedule import SCHEDULE, PlannedEnd, Schedule, stoppable


@pytest.fixture
def clock(monkeypatch):
    """The time, in seconds; clock.now is set by the tests."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(
        "vitkit.training.schedule.time", SimpleNamespace(monotonic=lambda: Clock.now)
    )
    return Clock


def followed(schedule, clock, seconds_of, step=0):
    """Go to the end of a run whose steps take so many seconds; returns the positions of its steps."""
    positions = []
    while step < schedule.last:
        positions.append(schedule.position(step))
        clock.now += seconds_of(step)
        step += 1
        schedule.follow(step)
    return [*positions, schedule.position(step)]


def test_without_a_deadline_a_step_is_its_own_position(tmp_path):
    schedule = Schedule(tmp_path, 30, None, print)
    assert [schedule.position(step) for step in range(31)] == list(range(31))
    schedule.follow(8)
    assert schedule.last == 30 and not (tmp_path / SCHEDULE).exists()


@pytest.mark.parametrize("seconds", [0.25, 1.0, 4.0, 12.5])
def test_it_ends_in_time_at_any_pace(tmp_path, clock, seconds):
    """A hundred steps of a second were planned."""
    schedule = Schedule(tmp_path, 100, Deadline(clock.now + 100, 300), print)
    positions = followed(schedule, clock, lambda step: seconds)
    assert schedule.last == min(100 / seconds, 300)
    assert clock.now == 1000 + schedule.last * seconds <= 1100
    assert positions[0] == 0 and positions[-1] == pytest.approx(100)
    assert all(later > earlier for earlier, later in pairwise(positions))


def test_a_busy_moment_is_made_up_for(tmp_path, clock):
    """Steps of a second; twenty of them, while somebody else is at work, take three."""
    schedule = Schedule(tmp_path, 100, Deadline(clock.now + 100, 300), print)
    positions = followed(schedule, clock, lambda step: 1 + 2 * (20 <= step < 40))
    assert 93 <= clock.now - 1000 <= 102
    assert positions[-1] == pytest.approx(100)
    assert 50 <= schedule.last <= 62

    # The rate has come down to nothing, gradually
    optim = Optim(lr=1.0)
    rates = [optim.rate(position, 100) for position in positions]
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert max(earlier - later for earlier, later in pairwise(rates)) < 0.06  # no jump


def test_a_slow_first_step_is_no_pace(tmp_path, clock):
    """Workers begin in it."""
    schedule = Schedule(tmp_path, 100, Deadline(clock.now + 120, 300), print)
    followed(schedule, clock, lambda step: 20 if step == 0 else 1)
    assert schedule.plans == [PlannedEnd(0, 100)]


def test_when_the_time_is_over_one_more_step_ends_the_schedule(tmp_path, clock):
    schedule = Schedule(tmp_path, 100, Deadline(clock.now + 100, 300), print)
    positions = followed(schedule, clock, lambda step: 1000 if step == 31 else 1)
    assert schedule.last == 33
    assert positions[-1] == pytest.approx(100)


def test_a_killed_run_follows_the_same_plans(tmp_path, clock):
    schedule = Schedule(tmp_path, 100, Deadline(clock.now + 100, 300), print)
    positions = followed(schedule, clock, lambda step: 2)
    again = Schedule(tmp_path, 100, None, print)
    assert again.plans == schedule.plans and len(again.plans) > 1
    assert [again.position(step) for step in range(again.last + 1)] == positions


def test_a_damaged_plan_is_said(tmp_path):
    (tmp_path / SCHEDULE).write_text('{"plans": [[3, 9]], "checksum": "of another"}')
    said = []
    assert Schedule(tmp_path, 100, None, said.append).last == 100
    assert "schedule.json is damaged" in said[0]


def test_a_run_in_time_is_continued_to_the_bit(tiny, quiet, tmp_path, clock, monkeypatch):
    """Steps of two seconds where thirty of one were planned. It is interrupted behind the first plan,
    and the clock is another one afterwards."""
    set_rates = loop.set_rates

    def ticking(recipe, state, position):
        clock.now += 2
        if state.step == stop_at:
            signal.raise_signal(signal.SIGTERM)
        return set_rates(recipe, state, position)

    monkeypatch.setattr(loop, "set_rates", ticking)
    monkeypatch.setattr(loop, "stoppable", lambda ends: stoppable())  # the plans alone end it
    recipe = replace(tiny, evaluate_every=tiny.length, save_every=tiny.length)
    ends = Ends(deadline=Deadline(clock.now + 30, 90))
    stop_at = None
    run_recipe(recipe, tmp_path / "whole", "cpu", quiet, ends)
    lines = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    (evaluated,) = {line["step"] for line in lines if line["event"] == "evaluation"}
    assert 13 <= evaluated <= 17

    clock.now = 1000.0
    stop_at = 6
    ends = Ends(deadline=Deadline(clock.now + 30, 90))
    with pytest.raises(Interrupted):
        run_recipe(recipe, tmp_path / "parts", "cpu", quiet, ends)
    plans = read_json(tmp_path / "parts" / SCHEDULE)["plans"]
    assert plans[0][0] <= 6
    whole = (tmp_path / "whole" / SCHEDULE).read_bytes()
    (tmp_path / "parts" / SCHEDULE).write_bytes(whole)  # as if it had been killed at its end
    stop_at = None
    run_recipe(recipe, tmp_path / "parts", "cpu", quiet)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_run_ends_at_its_deadline_whatever_happens(tiny, quiet, tmp_path):
    """The last step takes longer than all others: nobody could have known."""
    recipe = replace(tiny, evaluate_every=tiny.length)
    began = time.monotonic()
    ends = Ends(deadline=Deadline(began - 1, 90))
    run_recipe(recipe, tmp_path / "run", "cpu", quiet, ends)
    assert (tmp_path / "run" / "model").is_dir()


needs_them = pytest.mark.skipif(
    not hasattr(signal, "SIGUSR1"), reason="Windows has no such signals"
)
SCHEDULERS = ("SIGTERM", "SIGUSR1", "SIGUSR2")


@pytest.fixture
def handlers():
    """Each test of signals begins with none handled, and leaves them as they were."""
    numbers = [getattr(signal, name) for name in SCHEDULERS]
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@needs_them
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedulers_signals_ask_a_run_to_stop(handlers, name):
    number = getattr(signal, name)
    for _ in range(2):  # a second run in the same process hears it too
        with stoppable() as stop:
            signal.raise_signal(number)
            assert stop.asked and not stop.by_a_person
            with pytest.raises(Interrupted):
                stop.raise_if_asked()
        signal.raise_signal(number)  # SLURM's second one, while the run returns its status
        others = {getattr(signal, other) for other in SCHEDULERS} - {number}
        assert {signal.getsignal(other) for other in others} == {signal.SIG_DFL}


@needs_them
def test_a_stop_that_waits_says_so(handlers, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "PATIENT", 0.01)
    with stoppable():
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.1)  # the step
    assert capsys.readouterr().err == f"{schedule.STOPPING}\n"
    with stoppable():
        signal.raise_signal(signal.SIGTERM)
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


@needs_them
def test_a_signal_much_later_ends_the_process_as_ever(handlers, clock):
    ended = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    for _ in range(2):
        with stoppable():
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert not ended
    clock.now += 60
    signal.raise_signal(signal.SIGTERM)
    assert ended == [signal.SIGTERM]


@needs_them
def test_a_programs_own_handlers_stay_its_own(handlers):
    heard = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    with stoppable() as stop:  # under a scheduler that the program answers itself
        signal.raise_signal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR2) != signal.SIG_DFL
    assert heard == [signal.SIGUSR1] and not stop.asked
    with leaving_signals(), stoppable():  # in a call of a function
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_a_second_signal_while_the_first_one_is_noted(monkeypatch):
    """The thread that will say so is started once, also if the signal comes again while it starts."""
    started = []

    class Timer(SimpleNamespace):
        def start(self):
            started.append(self)
            if len(started) == 1:
                signal.raise_signal(signal.SIGTERM)

        def cancel(self):
            pass

    monkeypatch.setattr(schedule.threading, "Timer", lambda *_: Timer())
    with stoppable() as stop:
        signal.raise_signal(signal.SIGTERM)
    assert stop.asked and len(started) == 1
