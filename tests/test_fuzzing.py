"""A few damaged files of each kind; `make fuzz` tries thousands."""

import sys

import pytest
import torch
from fuzzing.__main__ import attempts
from fuzzing.subjects import SUBJECTS

ATTEMPTS = 40


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and limited")
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_damaged_file_gives_an_answer_or_one_sentence(subject):
    torch.set_num_threads(1)
    for number, outcome, file in attempts(subject, 0, range(ATTEMPTS)):
        assert outcome.right, f"attempt {number}, {file}: {outcome.kind}: {outcome.text}"
