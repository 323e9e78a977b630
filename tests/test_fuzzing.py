"""A minute of damaged files, the same ones each time; `make fuzz` tries others for ten, by the day."""

import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random

import pytest
from fuzzing.__main__ import told
from fuzzing.attempt import attempts
from fuzzing.grammars import GRAMMARS
from fuzzing.mutations import damaged
from fuzzing.subjects import SUBJECTS

from vitkit.system.errors import VitkitError

ATTEMPTS = 100
FEW = 5  # of what takes a second each: runs that are trained again, and drawn
SLOW = ("paused run", "finished run", "quick run continued", "quick run's report")
SLOW += ("stranger's run", "stranger's quick run")

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and limited")


@pytest.fixture(scope="module")
def clean():
    """Processes of their own: attempts are forks, and a process whose runtimes have threads, as other tests
    leave them, cannot be forked safely. PyTorch is imported once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fuzzing.__main__"])
    return partial(ProcessPoolExecutor, 1, context)


@pytest.mark.slow
@linux
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_damaged_file_gives_an_answer_or_one_sentence(subject, clean):
    count = FEW if subject.name in SLOW else ATTEMPTS
    with clean() as process:
        wrong = process.submit(told, SUBJECTS.index(subject), count).result()
    assert not wrong, "\n\n".join(wrong)


@linux
def test_attempts_that_end_wrong_are_told_and_stop_no_others(capfd):
    """A crash, a hang of a second, a traceback, memory and noise, among answers and a sentence."""

    def action(number):
        if number == 1:
            raise VitkitError("the file is damaged")
        if number == 2:
            raise KeyError("x")
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 4:
            signal.setitimer(signal.ITIMER_REAL, 0.1)  # in place of the usual twenty seconds
            time.sleep(10)
        if number == 5:
            bytearray(8 << 30)
        if number == 6:
            os.write(1, b"Warning: this is not for people")
        if number == 7:
            raise VitkitError("no")

    kinds = [(number, outcome.kind) for number, outcome in attempts(action, range(9))]
    expected = ("answer", "sentence", "traceback", "crash", "hang", "traceback", "noise", "noise")
    assert kinds == list(enumerate((*expected, "answer")))
    assert capfd.readouterr() == ("", "")


def test_the_same_seed_damages_in_the_same_way():
    for starts, _ in GRAMMARS:
        data = starts[0] + bytes(range(200))
        first = damaged(data, "", Random("seed"))
        assert damaged(data, "", Random("seed")) == first
    assert len({damaged(data, "", Random(number)) for number in range(20)}) > 10
