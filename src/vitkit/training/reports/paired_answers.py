"""Two runs on the images that both left out, by the answers that each has kept: whether chance explains
that one is right more often."""

import hashlib
from typing import NamedTuple

import numpy as np

from vitkit.evaluation import SHARE, agreement, mcnemar, read_answers
from vitkit.system.console.text import counted
from vitkit.training.evaluation import ANSWERS
from vitkit.training.record.history import Recorded
from vitkit.training.reports.answers import check_answered, open_part


class Common(NamedTuple):
    """What two runs answered to the same images."""

    first: np.ndarray
    """Whether the first is right: bool (N,)."""
    second: np.ndarray
    """Whether the second is: bool (N,)."""

    def sentence(self, first: str, second: str) -> str:
        """How often each is right, and whether chance explains it, for people. first and second: the
        names of the runs."""
        _, only_first, only_second, _ = agreement(self.first, self.second)
        p = mcnemar(only_first, only_second)
        return (
            f"on the {counted(len(self.first), 'image')} that both left out {first} is right on "
            f"{SHARE.text(self.first.mean())}, {second} on {SHARE.text(self.second.mean())}; {first} alone "
            f"on {only_first:,}, {second} alone on {only_second:,} (McNemar's exact test, p = {p:.2g})"
        )


def common_answers(first: Recorded, second: Recorded) -> Common | None:
    """What two runs answered to the images that neither has learned from; None if there is no such image,
    or if one has kept no answers. Images are the same if their files are.

    Raises ValueError if images have changed since; OSError.
    """
    right_of = []
    for run in (first, second):
        kept = read_answers(run.run_dir / ANSWERS)
        if kept is None:
            return None
        source = open_part(run, kept.part)
        check_answered(kept, source)
        digests = {}
        for row, index in enumerate(kept.answers.indices.tolist()):
            data, _ = source[index]
            digests[hashlib.sha256(data).digest()] = bool(kept.answers.right[row])
        right_of.append(digests)
    common = sorted(right_of[0].keys() & right_of[1].keys())
    if not common:
        return None
    return Common(*(np.array([rights[digest] for digest in common]) for rights in right_of))
