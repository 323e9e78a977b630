"""The stored answers of people: an append-only journal, and the labels that follow from it.

The journal is the only source: nothing in it is changed, and undoing an answer adds a line too. A
line that was not written completely, for example because of a power failure, can only be the last
one and is dropped. `labels.csv` is rewritten after every answer, for other programs.
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

LABELS = "labels.csv"  # the table of the answers
JOURNAL = "answers.jsonl"
LONGEST = 200  # longest name of a class, characters

How = Literal["typed", "screen", "random", "check"]
"""The kind of question: a single informative image; a screen of images with one predicted class; a single
image drawn at random; or an image whose class is checked."""


@dataclass(frozen=True)
class Answer:
    """A person's answer about one image, or about a screen of images."""

    number: int
    by: str
    """Name of the person."""
    how: How
    decision: Literal["class", "leave out", "not sure", "rename"]
    label: str = ""
    """The class, if the decision is a class; the new name of a renamed class."""
    photographs: tuple[str, ...] = ()
    """The images that the decision is about."""
    others: tuple[str, ...] = ()
    """The images of a screen that are not of its class."""
    renamed: str = ""
    """The former name of a renamed class."""
    guess: str = ""
    """The model's prediction, made before the answer, for an image that was drawn at random."""
    sure: float = 0.0
    """The certainty of this prediction."""
    learned: int = 0
    """Number of labels that the model had learned from at this prediction; 0 without a model."""


class Label(NamedTuple):
    """The label of an image, with its origin."""

    label: str
    how: How
    by: str


class DifferentLabels(NamedTuple):
    """An image to which two people gave different classes."""

    photograph: str
    labels: tuple[Label, Label]


class CurrentAnswers:
    """All current answers, and the labels that follow from them."""

    def __init__(self, standing: Iterable[Answer] = (), last: int = 0):
        """standing: the current answers in the order in which they were given. last: the highest
        number of any answer, also of undone ones."""
        self.standing: list[Answer] = []
        self.last = last
        self._said: dict[str, dict[str, Label]] = {}
        self._order: dict[
            str, None
        ] = {}  # of the classes, so that the number key of a class never changes
        self.set_aside: dict[str, str] = {}
        """The decision about each image that has no class because it was left out or marked as not
        sure."""
        self.refused: dict[str, set[str]] = {}
        """For each image the classes of the screens from which it was removed."""
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
        """A copy without one of the answers."""
        return CurrentAnswers((each for each in self.standing if each is not answer), self.last)

    @property
    def labels(self) -> dict[str, Label]:
        """The current label of each labelled image: its last answer. Images that were left out afterwards
        have none; an answer "not sure" does not remove the class that another person
        gave."""
        return {
            photograph: self._last(said)
            for photograph, said in self._said.items()
            if photograph not in self.set_aside
        }

    def said_by(self, photograph: str) -> dict[str, Label]:
        """The last label that each person gave an image."""
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
        """The images to which people gave different classes."""
        found = []
        for photograph, said in self._said.items():
            *others, last = said.values()
            for other in others:
                if other.label != last.label:
                    found.append(DifferentLabels(photograph, (other, last)))
                    break
        return found

    def agreement(self) -> tuple[float, int] | None:
        """Cohen's kappa of two people's answers, and the number of images that both answered; None
        if there are none. If three people or more answered an image, the last two count."""
        pairs = [list(said.values())[-2:] for said in self._said.values() if len(said) > 1]
        if not pairs:
            return None
        return kappa([a.label for a, _ in pairs], [b.label for _, b in pairs]), len(pairs)

    def _last(self, said: dict[str, Label]) -> Label:
        return next(reversed(said.values()))

    def _rename(self, answer: Answer) -> None:
        """Rename a class, and merge it with another one that has the new name."""
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
    """Cohen's kappa: the agreement of two people beyond chance; 1 if they always agree."""
    count = len(first)
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / count
    by_chance = 0.0
    for label in {*first, *second}:
        by_chance += first.count(label) / count * second.count(label) / count
    if by_chance == 1:  # there is only one class
        return 1.0
    return (agreed - by_chance) / (1 - by_chance)


class Journal:
    """The file of all answers."""

    def __init__(self, folder: Path):
        """folder: of the session; it must exist. Raises VitkitError for a file that is not a
        journal, OSError."""
        self.path = folder / JOURNAL
        self.answers, size = _read(self.path)
        if self.path.exists():
            os.truncate(self.path, size)  # drops an incomplete last line

    def add(self, answer: Answer) -> None:
        """Append an answer. It is on disk when this returns. Raises OSError."""
        values = {name: value for name, value in asdict(answer).items() if value not in ("", (), 0)}
        self._write(values)
        self.answers.add(answer)

    def take_back(self, by: str) -> Answer | None:
        """Undo a person's last current answer, and return it; None if there is none.
        Raises OSError."""
        for answer in reversed(self.answers.standing):
            if answer.by == by:
                self._write({"undo": answer.number})
                self.answers = self.answers.without(answer)
                return answer
        return None

    def _write(self, values: dict) -> None:
        """Append a line atomically: a full disk may accept only a part of it, which is then removed."""
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
    """The current answers of a journal, and the number of bytes in its complete lines."""
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
    """Write a table of the labels for `vitkit finetune` and other programs: each image's path, its
    class, the kind of question, and the person. Written atomically. Raises OSError.

    photographs: path of their folder, relative to the table.
    """
    rows = sorted((f"{photographs}/{name}", *label) for name, label in answers.labels.items())
    with whole(file) as new, new.open("w", -1, "utf-8", "backslashreplace", "") as text:
        writer = csv.writer(text)
        writer.writerow(("path", "label", "how", "by"))
        writer.writerows(rows)
