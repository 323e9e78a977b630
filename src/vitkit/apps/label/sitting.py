"""A sitting: people are asked about the photographs of one folder, and their answers kept.

What the photographs are is in photographs.py, what people have said in answers.py, how the next question is
chosen in questions.py; here is what joins them. All methods may be called from several threads at once.

Legend: N photographs, D width of the features.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from vitkit.apps.label.answers import (
    LONGEST,
    Answer,
    CurrentAnswers,
    DifferentLabels,
    Journal,
    write_labels,
)
from vitkit.apps.label.estimate import LATEST, Drawn, Estimate, share_right
from vitkit.apps.label.head import Head, unsureness
from vitkit.apps.label.photographs import PhotographFolder
from vitkit.apps.label.questions import LOOKED_AT, GivenOut, Question, Questions
from vitkit.system.console.text import printable
from vitkit.system.errors import BadSettings
from vitkit.training import LABELS

MORE = 50  # labels whose gain is told
PHOTOGRAPHS = "photographs"  # a link to their folder, in that of the sitting


Decision = Literal["class", "leave out", "not sure"]
"""What is said of photographs: their class, that they are no part of this, or nothing."""


@dataclass(frozen=True)
class SittingProgress:
    """The progress of a sitting."""

    photographs: int
    """That are in the folder,"""
    seen: int
    """that the model has seen,"""
    labelled: int
    """that have a class,"""
    set_aside: int
    """that were left out, or of which somebody was not sure,"""
    unreadable: int
    """that cannot be read, or are gone,"""
    left: int
    """and that nobody has answered and can be read."""
    classes: tuple[tuple[str, int], ...]
    """The classes, and how many photographs of each."""
    estimate: Estimate | None
    """How many of those without a label the model would get right, and what MORE labels would gain; None if
    too few were drawn at random to tell."""
    agreement: tuple[float, int] | None
    """Cohen's kappa of two people's answers, and of how many photographs."""


class Sitting:
    """Photographs, answers, and the next question."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        classes: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        """names: of the photographs, relative to their folder. folder: of this sitting, with what was
        answered before; it is there. classes: that are known before anything is labelled.

        Raises VitkitError for a journal that is damaged, and for two classes of one name; OSError.
        """
        self.folder = folder
        self.journal = Journal(folder)
        self.problem = ""
        """Why the table of labels could not be written, if it could not; the journal has all answers."""
        # Names may come with commas between them, as people write lists
        names_of_classes = [name for each in classes for name in each.split(",") if name.strip()]
        self._classes = tuple(map(class_name, names_of_classes))
        _refuse_repeated(self._classes)
        self._lock = threading.RLock()
        self._photographs = PhotographFolder()
        self._questions = Questions(self._photographs, self.journal)
        self._given_out = GivenOut(clock)
        self._estimated: Estimate | None = None
        self._is_estimated = False
        self.arrive(names)

    # Photographs

    def arrive(self, names: Sequence[str]) -> None:
        """Add photographs that have arrived in the folder."""
        with self._lock:
            self._photographs.arrive(names)

    def see(self, names: Sequence[str], features: np.ndarray) -> None:
        """Add the features of photographs, (n, D)."""
        with self._lock:
            self._photographs.see(names, features)
            self._is_estimated = False
            if any(name in self.answers.labels for name in names):
                self._questions.forget_head()

    def lose(self, name: str, problem: str) -> None:
        """Record that a photograph cannot be read, or no longer exists."""
        with self._lock:
            self._photographs.broken[name] = problem
            self._is_estimated = False
            self._given_out.withdraw(name)

    def recover(self, name: str) -> None:
        """A photograph that could not be read may be readable now: it was still being copied, or it is
        back."""
        with self._lock:
            self._photographs.recover(name)

    def unseen(self, most: int | None = None) -> list[str]:
        """The photographs that the model has to process, at most this many, those that were
        answered first."""
        with self._lock:
            return self._photographs.unseen(self.answers.labels, most)

    def seen(self) -> int:
        """The number of photographs with features."""
        with self._lock:
            return int(self._photographs.is_seen.sum())

    def names(self) -> list[str]:
        """The names of all photographs, including those that have vanished."""
        with self._lock:
            return list(self._photographs.names)

    def has(self, name: str) -> bool:
        """Whether a photograph may be shown: it is one of these."""
        return name in self._photographs.row

    def unreadable(self) -> dict[str, str]:
        """The photographs that cannot be read, and why."""
        with self._lock:
            return dict(self._photographs.broken)

    def features(self) -> tuple[list[str], np.ndarray]:
        """The photographs that the model has seen, and what it saw: float16 (N, D)."""
        with self._lock:
            rows = np.flatnonzero(self._photographs.is_seen)
            names = [self._photographs.names[row] for row in rows]
            return names, self._photographs.features[rows]

    # Answers

    @property
    def answers(self) -> CurrentAnswers:
        """All current answers."""
        return self.journal.answers

    def differences(self) -> list[DifferentLabels]:
        """The photographs that people do not agree about."""
        with self._lock:
            return self.answers.differences()

    def labels(self) -> dict[str, str]:
        """The photographs that have a class, with the class."""
        with self._lock:
            return {name: label.label for name, label in self.answers.labels.items()}

    def say(
        self,
        by: str,
        question: int,
        decision: Decision,
        label: str = "",
        others: Sequence[str] = (),
    ) -> Answer:
        """Record a person's answer to a question. It is on the disk when this returns.

        label: the class, of one photograph. others: the photographs of a screen that are not of its
        class.

        Raises VitkitError for a question that they were not given, or a class without a name; OSError.
        """
        with self._lock:
            asked = self._given_out.to_answer(by, question)
            if decision == "class":
                label = class_name(asked.label or label)
            apart = tuple(name for name in asked.photographs if name in set(others))
            kept = tuple(name for name in asked.photographs if name not in set(others))
            if asked.how != "screen" and apart:
                raise BadSettings("one photograph has one class: name it, and leave `others` empty")
            answer = Answer(
                self.answers.last + 1,
                by,
                asked.how,
                decision,
                label if decision == "class" else "",
                kept,
                apart,
            )
            if asked.how == "random" and decision == "class":
                answer = self._with_guess(answer)
            self._write(answer)
            self._given_out.done(by)
            return answer

    def _with_guess(self, answer: Answer) -> Answer:
        """An answer, with what the model takes its photograph for without it. Nothing if somebody has said
        what it is, so that the model has learned from it."""
        head, rows = self._questions.solved()
        name = answer.photographs[0]
        if head is None or self.answers.said_by(name) or not self._photographs.was_seen(name):
            return answer
        scores = head.scores(self._photographs.features[[self._photographs.row[name]]])
        guess = self.answers.classes()[head.classes[int(scores.argmax())]]
        sure = 1 - float(unsureness(scores))
        return replace(answer, guess=guess, sure=sure, learned=len(rows))

    def rename(self, by: str, old: str, new: str) -> Answer:
        """Rename a class. If another is called so, the two become one. Raises VitkitError
        for a class that does not exist, OSError."""
        with self._lock:
            new = class_name(new)
            if old not in self.classes():
                raise BadSettings(f"there is no class {old!r}")
            answer = Answer(self.answers.last + 1, by, "typed", "rename", new, renamed=old)
            self._write(answer)
            self._given_out.rename(old, new)
            return answer

    def undo(self, by: str) -> Answer | None:
        """Take back the last answer of somebody, and ask it again; None if there is none. Raises
        OSError."""
        with self._lock:
            answer = self.journal.take_back(by)
            if answer is None:
                return None
            self._changed()
            if answer.decision != "rename":
                asked = (*answer.photographs, *answer.others)
                label = answer.label if answer.how == "screen" else ""
                self._given_out.give(by, Question(answer.how, asked, label))
            return answer

    def classes(self) -> list[str]:
        """The classes, in the order in which they were added."""
        with self._lock:
            known = map(self.answers.now_called, self._classes)
            return list(dict.fromkeys((*known, *self.answers.classes())))

    def _write(self, answer: Answer) -> None:
        self.journal.add(answer)
        self._changed()

    def _changed(self) -> None:
        """Other answers stand than before."""
        self._questions.forget_head()
        self._is_estimated = False
        self.problem = ""
        try:
            write_labels(self.folder / LABELS, PHOTOGRAPHS, self.answers)
        except OSError as error:
            self.problem = f"{self.folder / LABELS} could not be written: {error.strerror or error}"

    # Questions

    def ask(self, by: str) -> Question | None:
        """The next question for a person: the same until it is answered. None if there is nothing
        to ask."""
        with self._lock:
            question = self._given_out.current(by)
            if question is None:
                question = self._questions.next(by, self._given_out.photographs())
                if question is None:
                    return None
                question = self._given_out.give(by, question)
            return self._questions.with_guesses(question)

    # The model

    def head(self) -> tuple[Head | None, list[str]]:
        """The head of all answers, None for fewer than two classes; and the names of the classes, by its
        numbers."""
        with self._lock:
            return self._questions.solved()[0], self.answers.classes()

    # How far it is

    def progress(self) -> SittingProgress:
        """The progress, and the accuracy of the model on photographs without a label."""
        with self._lock:
            labels = self.answers.labels
            counts = Counter(label.label for label in labels.values())
            if not self._is_estimated:  # it is asked for every other second
                self._estimated = self._estimate()
                self._is_estimated = True
            count = len(self._photographs.names)
            answered = self._photographs.rows(self._questions.answered())
            return SittingProgress(
                photographs=count,
                seen=int(self._photographs.is_seen.sum()),
                labelled=len(labels),
                set_aside=len(self.answers.set_aside),
                unreadable=len(self._photographs.broken),
                left=count - len(answered),
                classes=tuple((label, counts[label]) for label in self.classes()),
                estimate=self._estimated,
                agreement=self.answers.agreement(),
            )

    def _estimate(self) -> Estimate | None:
        """How many of the rest the model gets right, and what MORE labels would gain."""
        head, rows = self._questions.solved()
        if head is None:
            return None
        left = np.flatnonzero(self._photographs.seen_but(self._questions.answered()))
        left = left[:: len(left) // LOOKED_AT + 1]
        sure = 1 - unsureness(head.scores(self._photographs.features[left])).numpy()
        return share_right(self._random_answers(), sure, len(rows), MORE)

    def _random_answers(self) -> Drawn:
        """What the model took the last random photographs for, before it was said what they are."""
        drawn: list[tuple[bool, float, int]] = []
        labels = self.answers.labels
        for answer in reversed(self.answers.standing):
            if len(drawn) == LATEST:
                break
            if answer.how == "random" and answer.learned and answer.photographs[0] in labels:
                label = labels[answer.photographs[0]].label
                right = self.answers.now_called(answer.guess) == label
                drawn.append((right, answer.sure, answer.learned))
        in_order = np.array(drawn[::-1]).reshape(-1, 3)
        return Drawn(in_order[:, 0] == 1, in_order[:, 1], in_order[:, 2])


def _refuse_repeated(names: Sequence[str]) -> None:
    """Raises VitkitError for two names that differ in the case of letters at most."""
    spellings: dict[str, str] = {}
    for name in names:
        other = spellings.get(name.casefold())
        if other is not None:
            raise BadSettings(
                f"`classes` names {other!r} and {name!r}, which are one class; name it once"
            )
        spellings[name.casefold()] = name


def class_name(text: str) -> str:
    """The name of a class, without what cannot be printed. Raises VitkitError if there is none."""
    name = " ".join(printable(text).split())
    if not name:
        raise BadSettings("the class needs a name")
    if len(name) > LONGEST:
        raise BadSettings(
            f"the name of a class is {len(name)} characters long; at most {LONGEST} are"
        )
    return name
