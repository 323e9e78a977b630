"""A minute of damaged files, the same ones each time; `make fuzz` tries others for ten, by the day."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from fuzzing.attempt import attempts
from fuzzing.grammars import GRAMMARS
from fuzzing.mutations import damaged
from fuzzing.subjects import SUBJECTS

ATTEMPTS = 100
FEW = 5  # of what takes a second each: runs that are trained again, and drawn
SLOW = ("paused run", "finished run", "quick run continued", "quick run's report")

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and limited")


# A process of its own: attempts are forks, and one whose runtimes have threads, as other tests leave
# them, cannot be forked safely
CODE = """
import sys
import torch
from fuzzing.__main__ import tries
from fuzzing.subjects import SUBJECTS

torch.set_num_threads(1)
subject, count = int(sys.argv[1]), int(sys.argv[2])
wrong = [str(tried) for tried in tries(SUBJECTS[subject], 0, range(count)) if not tried.outcome.right]
if wrong:
    sys.exit("\\n\\n".join(wrong))
"""


@pytest.mark.slow
@linux
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_damaged_file_gives_an_answer_or_one_sentence(subject):
    count = FEW if subject.name in SLOW else ATTEMPTS
    words = [sys.executable, "-c", CODE, str(SUBJECTS.index(subject)), str(count)]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert ended.returncode == 0, ended.stderr


@linux
def test_attempts_that_end_wrong_are_told_and_stop_no_others(capfd):
    """A crash, a hang of a second, a traceback, memory and noise, among answers and a sentence."""

    def action(number):
        if number == 1:
            raise ValueError("the file is damaged")
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
            raise ValueError("no")

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
