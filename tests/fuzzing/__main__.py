"""`python -m fuzzing`: damage files for so many seconds, and print a table of what came out.

The same seed damages the same files in the same ways. What must not be is printed with the words
that repeat it alone, and its bytes; --keep keeps them in a folder as well.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from fuzzing.attempt import Outcome, attempt, attempts
from fuzzing.mutations import damage
from fuzzing.subjects import SUBJECTS, Subject

SHOWN = 4096  # bytes of a file that are printed


def main() -> int:
    """The exit status is 1 if anything came out that must not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="in all")
    parser.add_argument("--attempts", type=int, help="of each subject, whatever time they take")
    parser.add_argument("--seed", type=int, help="today's number, if none is given")
    parser.add_argument(
        "--subject",
        default="",
        help="only those with one of these words, between commas, in their names",
    )
    parser.add_argument("--only", type=int, help="only the attempt of this number")
    parser.add_argument("--keep", type=Path, help="a folder for what came out wrong")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = date.today().toordinal()
    torch.set_num_threads(1)  # a process with threads cannot be forked safely

    numbers: Iterable[int] = range(sys.maxsize)
    if options.attempts is not None:
        numbers = range(options.attempts)
    if options.only is not None:
        numbers = (options.only,)
    words = options.subject.split(",")
    subjects = [each for each in SUBJECTS if any(word in each.name for word in words)]
    seconds = inf
    if options.only is None and options.attempts is None:
        seconds = options.seconds / len(subjects)
    counts: dict[str, Counter] = {}
    try:
        for subject in subjects:
            counts[subject.name] = Counter()
            for tried in tries(subject, options.seed, numbers, seconds):
                counts[subject.name][tried.outcome.kind] += 1
                if not tried.outcome.right:
                    _tell(tried, options.keep)
    finally:  # however it ends
        _print(counts, options.seed)
    return int(any(counter.total() > _right(counter) for counter in counts.values()))


def _tell(tried: "Tried", keep: Path | None) -> None:
    """Print what must not be, and keep its bytes."""
    print(f"--- {tried}\n", flush=True)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        name = f"{tried.subject}-{tried.number}-{Path(tried.file).name}".replace(" ", "-")
        (keep / name).write_bytes(tried.data)


class Tried(NamedTuple):
    """A damaged file, and what came out."""

    subject: str
    seed: int
    number: int
    outcome: Outcome
    file: str = ""
    """The file's name, if the outcome is wrong."""
    data: bytes = b""
    """And its bytes."""

    def __str__(self) -> str:
        """What is wrong, the file's bytes, and how to see it again."""
        again = f'--subject "{self.subject}" --seed {self.seed} --only {self.number}'
        more = ""
        if len(self.data) > SHOWN:
            more = f" ... ({len(self.data):,} bytes: --keep FOLDER keeps them)"
        return (
            f"{self.subject}, attempt {self.number}, {self.file}: {self.outcome.kind}: "
            f"{self.outcome.text[-2500:]}\n"
            f"    its bytes: {self.data[:SHOWN].hex()}{more}\n"
            f"    again: cd tests && python -m fuzzing {again}"
        )


def told(subject: int, count: int) -> list[str]:
    """What must not be, of the first attempts of seed 0 with the subject of this number."""
    torch.set_num_threads(1)  # a process with threads cannot be forked safely
    tried = tries(SUBJECTS[subject], 0, range(count))
    return [str(each) for each in tried if not each.outcome.right]


def tries(
    subject: Subject, seed: int, numbers: Iterable[int], seconds: float = inf
) -> Iterator[Tried]:
    """What came out of each attempt with a subject, in so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        whole.mkdir()
        subject.make(whole)
        untouched = attempt(lambda: subject.use(_copy(whole)))
        assert untouched.kind == "answer", (subject.name, untouched)

        def one(number: int) -> None:
            _damaged(subject, seed, number, whole)
            subject.use(whole.parent / "damaged")

        until = time.monotonic() + seconds
        for number, outcome in attempts(one, numbers, until):
            tried = Tried(subject.name, seed, number, outcome)
            if not outcome.right:
                file, data = _damaged(subject, seed, tried.number, whole)
                tried = tried._replace(file=file, data=data)
            yield tried


def _damaged(subject: Subject, seed: int, number: int, whole: Path) -> tuple[str, bytes]:
    """Make a fresh copy beside what is whole, and damage a file of it: its name, and its bytes."""
    random = Random(f"{subject.name} {seed} {number}")
    chosen = random.choice(subject.files(whole))
    folder = _copy(whole, only=chosen if subject.alone else None)
    file = folder / chosen.relative_to(whole)
    if subject.change is None:
        damage(file, random, subject.replaced)
    else:
        subject.change(file, random)
    data = b""
    if file.is_file() and not file.is_symlink():
        data = file.read_bytes()
    return str(file.relative_to(folder)), data


def _copy(whole: Path, only: Path | None = None) -> Path:
    """A fresh copy of what is whole, or of one file of it, beside it."""
    damaged = whole.parent / "damaged"
    shutil.rmtree(damaged, ignore_errors=True)
    if only is None:
        shutil.copytree(whole, damaged)
    else:
        damaged.mkdir()
        shutil.copy(only, damaged)
    return damaged


def _right(counter: Counter) -> int:
    """How many ended as they may."""
    return counter["answer"] + counter["sentence"]


def _print(counts: dict[str, Counter], seed: int) -> None:
    """The table for docs/reliability.md."""
    kinds = ("answer", "sentence", "traceback", "crash", "hang", "noise")
    table = Table("damaged", "attempts", *kinds, title=f"seed {seed}")
    for name, counter in counts.items():
        table.add_row(name, f"{counter.total():,}", *(f"{counter[kind]:,}" for kind in kinds))
    total = sum(counts.values(), Counter())
    table.add_row("all", f"{total.total():,}", *(f"{total[kind]:,}" for kind in kinds))
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
