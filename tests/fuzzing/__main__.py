"""`python -m fuzzing`: damage files for so many seconds, and print a table of what came out.

The same seed damages the same files in the same ways. What must not be is printed with the words
that repeat it alone, and kept in the folder of --keep.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from rich.table import Table

from fuzzing.attempt import Outcome, attempt
from fuzzing.mutations import damage
from fuzzing.subjects import SUBJECTS, Subject


def main() -> int:
    """The exit status is 1 if anything came out that must not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--subject", default="", help="only those with this in their name")
    parser.add_argument("--only", type=int, default=-1, help="only the attempt of this number")
    parser.add_argument("--keep", type=Path, help="a folder for what came out wrong")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads cannot be forked safely

    subjects = [subject for subject in SUBJECTS if options.subject in subject.name]
    counts = {}
    failures = 0
    for subject in subjects:
        counts[subject.name] = Counter()
        numbers = _numbers(options.only, options.seconds / len(subjects))
        for number, outcome, file in attempts(subject, options.seed, numbers, options.keep):
            counts[subject.name][outcome.kind] += 1
            if outcome.right:
                continue
            failures += 1
            print(f"--- {subject.name}, attempt {number} ({file}): {outcome.kind}")
            print(f"{outcome.text[-1500:]}")
            print(f'    again: --subject "{subject.name}" --seed {options.seed} --only {number}\n')
    _print(counts)
    return min(failures, 1)


def _numbers(only: int, seconds: float) -> Iterator[int]:
    """The number asked for, or 0, 1, 2 ... until the time is over."""
    if only >= 0:
        yield only
        return
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1


def attempts(
    subject: Subject, seed: int, numbers: Iterator[int], keep: Path | None = None
) -> Iterator[tuple[int, Outcome, str]]:
    """The outcome of each attempt with a subject, and the name of the file that was damaged."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        damaged = Path(folder) / "damaged"
        whole.mkdir()
        subject.make(whole)
        untouched = attempt(lambda: subject.use(_copy(whole, damaged)))
        assert untouched.kind == "answer", (subject.name, untouched)

        for number in numbers:
            random = Random(f"{subject.name} {seed} {number}")
            _copy(whole, damaged)
            file = random.choice(subject.files(damaged))
            damage(file, random)
            outcome = attempt(lambda: subject.use(damaged))
            if keep and not outcome.right and file.is_file():
                keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, keep / f"{subject.name} {number} {file.name}".replace(" ", "-"))
            yield number, outcome, str(file.relative_to(damaged))


def _copy(whole: Path, damaged: Path) -> Path:
    """A fresh copy of what is whole."""
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(whole, damaged)
    return damaged


def _print(counts: dict[str, Counter]) -> None:
    """The table for docs/reliability.md."""
    kinds = ("answer", "sentence", "traceback", "crash", "hang", "noise")
    table = Table("damaged", "attempts", *kinds)
    for name, counter in counts.items():
        table.add_row(name, f"{counter.total():,}", *(f"{counter[kind]:,}" for kind in kinds))
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
