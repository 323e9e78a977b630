"""What people have answered: a journal to which each answer adds a line, and what follows from all of them.

The journal is the truth: nothing in it is ever changed, an answer that is taken back is a line too. A line
that was not written whole, because the machine went off, is the last one and is left out. `labels.csv`
is written anew from it after every answer, for other programs.
"""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from vitkit.system.errors import BadRun
from vitkit.system.storage.files import parse_json, whole
from vitkit.system.storage.records import record_of, value_of
from vitkit.training import LABELS

JOURNAL = "answers.jsonl"
LONGEST = 200  # characters of the name of a class

How = Literal["typed", "screen", "random", "check"]
"""How a photograph was asked about: by itself, because its answer teaches; on a screen of photographs that
the model takes for the same class; by itself and drawn at random; or because its class is checked."""


@dataclass(frozen=True)
class Answer:
    """A person's answer about one photograph, or about a screen of them."""

    number: int
    by: str
    """Who said it."""
    how: How
    decision: Literal["class", "leave out", "not sure", "rename"]
    label: str = ""
    """The class, if that is what was decided; the new name, of a class that was renamed."""
    photographs: tuple[str, ...] = ()
    """Of which it was said."""
    others: tuple[str, ...] = ()
    """The photographs of a screen that are not of its class."""
    renamed: str = ""
    """What a class was called before."""
    guess: str = ""
    """What the model took a photograph for that was drawn at random, before this was said of it,"""
    sure: float = 0.0
    """how sure it was,"""
    learned: int = 0
    """and how many labels it had learned from; 0 if there was no model."""


class Label(NamedTuple):
    """The known label of a photograph."""

    label: str
    how: How
    by: str


class DifferentLabels(NamedTuple):
    """A photograph to which two people gave different classes."""

    photograph: str
    labels: tuple[Label, Label]


class CurrentAnswers:
    """All current answers, and the labels that follow from them."""

    def __init__(self, standing: Iterable[Answer] = (), last: int = 0):
        """standing: in the order in which they were given. last: the number of the last answer that there
        ever was."""
        self.standing: list[Answer] = []
        self.last = last
        self._said: dict[str, dict[str, Label]] = {}
        self._order: dict[str, None] = {}  # of the classes: a number key stays that of its class
        self.set_aside: dict[str, str] = {}
        """The photographs that have no class because somebody left them out or was not sure, and which
        of the two."""
        self.refused: dict[str, set[str]] = {}
        """The classes that each photograph was taken out of on a screen."""
        for answer in standing:
            self.add(answer)

    def add(self, answer: Answer) -> None:
        """Add an answer."""
        self.standing.append(answer)
        self.last = max(self.last, answer.number)
        if answer.decision == "rename":
            self._rename(answer)
            return
        for photograph in (*answer.photographs, *answer.others):
            self.set_aside.pop(photograph, None)
            said = self._said.get(photograph, {})
            said.pop(answer.by, None)
            if not said:
                self._said.pop(photograph, None)
        for photograph in answer.photographs:
            if answer.decision == "class":
                label = Label(answer.label, answer.how, answer.by)
                self._said.setdefault(photograph, {})[answer.by] = label
                self._order[answer.label] = None
            elif answer.decision == "leave out" or photograph not in self._said:
                self.set_aside[photograph] = answer.decision
        for photograph in answer.others:
            self.refused.setdefault(photograph, set()).add(answer.label)

    def without(self, answer: Answer) -> "CurrentAnswers":
        """The answers without one of them."""
        return CurrentAnswers((each for each in self.standing if each is not answer), self.last)

    @property
    def labels(self) -> dict[str, Label]:
        """Each photograph that was given a class, and the last answer about it. None of one that
        somebody left out afterwards; one who is not sure leaves it the class that another gave
        it."""
        return {
            photograph: self._last(said)
            for photograph, said in self._said.items()
            if photograph not in self.set_aside
        }

    def said_by(self, photograph: str) -> dict[str, Label]:
        """The last answer of each person about a photograph."""
        return self._said.get(photograph, {})

    def classes(self) -> list[str]:
        """The classes, in the order in which they were added."""
        used = {self._last(said).label for said in self._said.values()}
        return [label for label in self._order if label in used]

    def now_called(self, label: str) -> str:
        """The current name of a class that had this name before any class was renamed."""
        for answer in self.standing:
            if answer.decision == "rename" and answer.renamed == label:
                label = answer.label
        return label

    def differences(self) -> list[DifferentLabels]:
        """The photographs that people do not agree about."""
        found = []
        for photograph, said in self._said.items():
            *others, last = said.values()
            for other in others:
                if other.label != last.label:
                    found.append(DifferentLabels(photograph, (other, last)))
                    break
        return found

    def agreement(self) -> tuple[float, int] | None:
        """Cohen's kappa of the answers of two people to the same photographs, and the number of
        photographs; None if no two did. If three people answered a photograph, the last two
        count."""
        pairs = [list(said.values())[-2:] for said in self._said.values() if len(said) > 1]
        if not pairs:
            return None
        return kappa([a.label for a, _ in pairs], [b.label for _, b in pairs]), len(pairs)

    def _last(self, said: dict[str, Label]) -> Label:
        return next(reversed(said.values()))

    def _rename(self, answer: Answer) -> None:
        """Call a class otherwise; it becomes one with another that is called so."""
        for said in self._said.values():
            for person, label in said.items():
                if label.label == answer.renamed:
                    said[person] = label._replace(label=answer.label)
        order = (answer.label if label == answer.renamed else label for label in self._order)
        self._order = dict.fromkeys(order)
        for labels in self.refused.values():
            if answer.renamed in labels:
                labels.remove(answer.renamed)
                labels.add(answer.label)


def kappa(first: Sequence[str], second: Sequence[str]) -> float:
    """Cohen's kappa: how much more two people agree than they would by chance; 1 if they always do."""
    count = len(first)
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / count
    by_chance = 0.0
    for label in {*first, *second}:
        by_chance += first.count(label) / count * second.count(label) / count
    if by_chance == 1:  # there is one class
        return 1.0
    return (agreed - by_chance) / (1 - by_chance)


class Journal:
    """The file of all answers."""

    def __init__(self, folder: Path):
        """folder: of the sitting; it is there. Raises VitkitError for a file that is no journal, OSError."""
        self.path = folder / JOURNAL
        self.answers, size = _read(self.path)
        if self.path.exists():
            os.truncate(self.path, size)  # without a line that was not written whole

    def add(self, answer: Answer) -> None:
        """Write an answer down. It is on the disk when this returns. Raises OSError."""
        values = {name: value for name, value in asdict(answer).items() if value not in ("", (), 0)}
        self._write(values)
        self.answers.add(answer)

    def take_back(self, by: str) -> Answer | None:
        """Take back the last answer of somebody that stands, and return it; None if there is none.
        Raises OSError."""
        for answer in reversed(self.answers.standing):
            if answer.by == by:
                self._write({"undo": answer.number})
                self.answers = self.answers.without(answer)
                return answer
        return None

    def _write(self, values: dict) -> None:
        """Append a line, whole or not at all: a full disk may take a part of it."""
        line = json.dumps(values).encode() + b"\n"
        with self.path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise


def _read(path: Path) -> tuple[CurrentAnswers, int]:
    """The answers of a journal that stand, and the bytes of its whole lines."""
    if not path.exists():
        return CurrentAnswers(), 0
    data = path.read_bytes()
    size = data.rfind(b"\n") + 1
    standing: dict[int, Answer] = {}
    last = 0
    for number, line in enumerate(data[:size].splitlines(), 1):
        try:
            values = parse_json(line)
            if isinstance(values, dict) and "undo" in values:
                standing.pop(value_of(int, values["undo"], "undo"), None)
                continue
            answer = record_of(Answer, values)
            _check(answer)
        except ValueError as error:
            raise BadRun(
                f"{path}: line {number} is not an answer ({error}); the labels so far are in {LABELS} beside "
                "it; move both away to begin again"
            ) from error
        standing[answer.number] = answer
        last = max(last, answer.number)
    return CurrentAnswers(standing.values(), last), size


def _check(answer: Answer) -> None:
    """Raises VitkitError for an answer that the page cannot have sent."""
    needed = {
        "a number above 0": answer.number > 0,
        "a class": bool(answer.label) or answer.decision not in ("class", "rename"),
        "the name that a class had": bool(answer.renamed) or answer.decision != "rename",
        "names of photographs": all((*answer.photographs, *answer.others)),
        "a photograph": bool(answer.photographs or answer.others) or answer.decision == "rename",
        "one photograph": answer.how == "screen" or len(answer.photographs) <= 1,
        "a photograph that was guessed": bool(answer.photographs) or not answer.learned,
        "a probability": 0 <= answer.sure <= 1,
        "labels that were learned": answer.learned >= 0,
        "a name of at most 200 characters": max(map(len, (answer.label, answer.renamed)))
        <= LONGEST,
    }
    for what, is_there in needed.items():
        if not is_there:
            raise BadRun(f"it lacks {what}")


def write_labels(file: Path, photographs: str, answers: CurrentAnswers) -> None:
    """Write a table of the labels, which `vitkit finetune` and others read: the path of each photograph, its
    class, how that was given and by whom. Whole or not at all. Raises OSError.

    photographs: the folder that they lie in, as the table's readers find it.
    """
    rows = sorted((f"{photographs}/{name}", *label) for name, label in answers.labels.items())
    with whole(file) as new, new.open("w", -1, "utf-8", "backslashreplace", "") as text:
        writer = csv.writer(text)
        writer.writerow(("path", "label", "how", "by"))
        writer.writerows(rows)
