"""A sitting: photographs of one folder, what people have said of them, and which question comes next.

A question is about one photograph, or a screen of photographs that the model takes for the same class. One in
RANDOM single photographs is drawn at random, so that how good the model is can be told (estimate.py); the
others are those that teach most (active_learning.py). After every few single ones comes a screen, as soon as the
model is sure enough of one.

All methods may be called from several threads at once.

Legend: N photographs, D width of the features, K classes that have a label.
"""

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from vitkit.labelling.active_learning import Cover
from vitkit.labelling.answers import (
    LONGEST,
    Answer,
    Answers,
    Difference,
    How,
    Journal,
    write_labels,
)
from vitkit.labelling.estimate import LATEST, Drawn, Estimate, share_right
from vitkit.labelling.head import Head, solve, unsureness
from vitkit.system.console.text import printable
from vitkit.training import LABELS

SCREEN = 24  # photographs of a screen
FEWEST = 4  # photographs that are worth a screen
SURE = 0.9  # of a screen's photographs that are expected to be of its class
BETWEEN = 3  # single photographs between two screens
RANDOM = 5  # one in so many single photographs is drawn at random
GROWTH = 1.25  # how many more photographs there are when typical ones are looked for anew
LOOKED_AT = 20_000  # unlabelled photographs that a screen is chosen from
GIVEN_OUT = 300.0  # seconds for which a photograph is one person's to answer
MORE = 50  # labels whose gain is told
PHOTOGRAPHS = "photographs"  # a link to their folder, in that of the sitting
GUESSES = 5  # classes that are proposed for one photograph


Decision = Literal["class", "leave out", "not sure"]
"""What is said of photographs: their class, that they are no part of this, or nothing."""


class Question(NamedTuple):
    """What somebody is asked."""

    number: int
    how: How
    photographs: tuple[str, ...]
    """One; or those of a screen, the surest first."""
    label: str = ""
    """The class of a screen; of a photograph that is checked, the one that it has."""
    guesses: tuple[tuple[str, float], ...] = ()
    """The likeliest classes of one photograph, and their probabilities, best first; none while there is no
    model."""
    reason: str = ""
    """Why a photograph is checked, in words."""
    beside: str = ""
    """The photograph that one to be checked repeats, if it does."""


@dataclass(frozen=True)
class SittingProgress:
    """How far a sitting is."""

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


class _Singles(NamedTuple):
    """Single photographs that somebody has answered."""

    count: int
    since_screen: int


@dataclass
class _Given:
    """A question that was given out."""

    question: Question
    until: float


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

        Raises ValueError for a journal that is damaged, OSError.
        """
        self.folder = folder
        self.journal = Journal(folder)
        self.problem = ""
        """Why the table of labels could not be written, if it could not; the journal has all answers."""
        # Names may come with commas between them, as people write lists
        names_of_classes = [name for each in classes for name in each.split(",") if name.strip()]
        self._classes = tuple(dict.fromkeys(map(class_name, names_of_classes)))
        self._clock = clock
        self._lock = threading.RLock()
        self._names: list[str] = []
        self._row: dict[str, int] = {}
        self._features = np.empty((0, 0), np.float16)
        self._is_seen = np.empty(0, bool)
        self._broken: dict[str, str] = {}
        self._drawn: list[str] = []
        self._cover: tuple[Cover, np.ndarray] | None = None
        self._head: tuple[Head, np.ndarray] | None = None
        self._estimated: Estimate | None = None
        self._is_estimated = False
        self._given: dict[str, _Given] = {}  # by who was asked
        self._asked = 0
        self.arrive(names)

    # Photographs

    def arrive(self, names: Sequence[str]) -> None:
        """More photographs are in the folder."""
        with self._lock:
            new = [name for name in names if name not in self._row]
            if not new:
                return
            for name in new:
                self._row[name] = len(self._names)
                self._names.append(name)
                if not _is_text(name):  # neither a page nor a table can name it
                    self._broken[name] = "its name is not UTF-8; rename the file"
            is_seen = np.zeros(len(self._names), bool)
            is_seen[: len(self._is_seen)] = self._is_seen
            self._is_seen = is_seen
            # In an order that nobody chose, the same whenever a photograph arrives
            self._drawn = sorted(self._names, key=_lot)

    def see(self, names: Sequence[str], features: np.ndarray) -> None:
        """The model has seen photographs: their features, (n, D)."""
        with self._lock:
            if len(self._features) < len(self._names) or not self._features.shape[1]:
                grown = np.zeros((len(self._names), features.shape[1]), np.float16)
                grown[: len(self._features), : self._features.shape[1]] = self._features
                self._features = grown
            rows = [self._row[name] for name in names]
            most = np.finfo(np.float16).max
            self._features[rows] = np.clip(features, -most, most)
            self._is_seen[rows] = True
            self._is_estimated = False
            if any(name in self.answers.labels for name in names):
                self._head = None

    def lose(self, name: str, problem: str) -> None:
        """A photograph cannot be read, or is not there any more."""
        with self._lock:
            self._broken[name] = problem
            self._is_estimated = False
            self._given = {
                by: given
                for by, given in self._given.items()
                if name not in given.question.photographs
            }

    def recover(self, name: str) -> None:
        """A photograph that could not be read may be readable now: it was still being copied, or it is
        back."""
        with self._lock:
            if _is_text(name):
                self._broken.pop(name, None)

    def unseen(self, most: int | None = None) -> list[str]:
        """The photographs that the model has to see, or so many of them at most, those that were answered
        first."""
        with self._lock:
            waits = ~self._is_seen
            waits[self._rows(self._broken)] = False
            answered = [row for row in self._rows(self.answers.labels) if waits[row]]
            waits[answered] = False
            rows = [*answered, *np.flatnonzero(waits)[:most].tolist()]
            return [self._names[row] for row in rows[:most]]

    def seen(self) -> int:
        """How many photographs the model has seen."""
        with self._lock:
            return int(self._is_seen.sum())

    def names(self) -> list[str]:
        """All photographs that there ever were."""
        with self._lock:
            return list(self._names)

    def has(self, name: str) -> bool:
        """Whether a photograph may be shown: it is one of these."""
        return name in self._row

    def unreadable(self) -> dict[str, str]:
        """The photographs that cannot be read, and why."""
        with self._lock:
            return dict(self._broken)

    def features(self) -> tuple[list[str], np.ndarray]:
        """The photographs that the model has seen, and what it saw: float16 (N, D)."""
        with self._lock:
            rows = np.flatnonzero(self._is_seen)
            return [self._names[row] for row in rows], self._features[rows]

    # Answers

    @property
    def answers(self) -> Answers:
        """All answers that stand."""
        return self.journal.answers

    def differences(self) -> list[Difference]:
        """The photographs that people do not agree about."""
        with self._lock:
            return self.answers.differences()

    def labels(self) -> dict[str, str]:
        """Each photograph that has a class, and which."""
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
        """Answer the question that somebody was given. It is on the disk when this returns.

        label: the class, of one photograph. others: the photographs of a screen that are not of its
        class.

        Raises ValueError for a question that they were not given, or a class without a name; OSError.
        """
        with self._lock:
            given = self._given.get(by)
            if given is None or given.question.number != question:
                raise ValueError("this question was answered already, or given to somebody else")
            asked = given.question
            if decision == "class":
                label = class_name(asked.label or label)
            apart = tuple(name for name in asked.photographs if name in set(others))
            kept = tuple(name for name in asked.photographs if name not in set(others))
            if asked.how != "screen" and apart:
                raise ValueError("one photograph is of a class, or not; say which")
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
            del self._given[by]
            return answer

    def _with_guess(self, answer: Answer) -> Answer:
        """An answer, with what the model takes its photograph for without it. Nothing if somebody has said
        what it is, so that the model has learned from it."""
        head, rows = self._solved()
        name = answer.photographs[0]
        if head is None or self.answers.said_by(name) or not self._is_known(name):
            return answer
        scores = head.scores(self._features[[self._row[name]]])
        guess = self.answers.classes()[head.classes[int(scores.argmax())]]
        sure = 1 - float(unsureness(scores))
        return replace(answer, guess=guess, sure=sure, learned=len(rows))

    def rename(self, by: str, old: str, new: str) -> Answer:
        """Call a class otherwise. If another is called so, the two become one. Raises ValueError for a
        class that is not there, OSError."""
        with self._lock:
            new = class_name(new)
            if old not in self.classes():
                raise ValueError(f"there is no class {old!r}")
            answer = Answer(self.answers.last + 1, by, "typed", "rename", new, renamed=old)
            self._write(answer)
            for given in self._given.values():  # somebody's screen of the class that is no more
                if given.question.label == old:
                    given.question = given.question._replace(label=new)
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
                self._give(by, Question(self._next_number(), answer.how, asked, label))
            return answer

    def classes(self) -> list[str]:
        """The classes, in the order in which they came."""
        with self._lock:
            known = map(self.answers.now_called, self._classes)
            return list(dict.fromkeys((*known, *self.answers.classes())))

    def _write(self, answer: Answer) -> None:
        self.journal.add(answer)
        self._changed()

    def _changed(self) -> None:
        """Other answers stand than before."""
        self._head = None
        self._is_estimated = False
        self.problem = ""
        try:
            write_labels(self.folder / LABELS, PHOTOGRAPHS, self.answers)
        except OSError as error:
            self.problem = f"{self.folder / LABELS} could not be written: {error.strerror or error}"

    # Questions

    def ask(self, by: str) -> Question | None:
        """What to ask somebody next: the same until it is answered. None if there is nothing to ask."""
        with self._lock:
            now = self._clock()
            given = self._given.get(by)
            if given is not None and given.until > now:
                given.until = now + GIVEN_OUT
                return self._with_guesses(given.question)
            self._given = {name: each for name, each in self._given.items() if each.until > now}
            singles = self._singles_of(by)
            question = None
            if singles.since_screen >= BETWEEN:
                question = self._screen()
            if question is None and singles.count % RANDOM == RANDOM - 1:
                question = self._random(by)
            question = question or self._instructive() or self._screen() or self._random(by)
            if question is None:
                return None
            self._give(by, question)
            return self._with_guesses(question)

    def _give(self, by: str, question: Question) -> None:
        self._given[by] = _Given(question, self._clock() + GIVEN_OUT)

    def _next_number(self) -> int:
        self._asked += 1
        return self._asked

    def _singles_of(self, by: str) -> _Singles:
        """How many single photographs somebody has answered, and how many since a screen."""
        count = 0
        since_screen = 0
        for answer in self.answers.standing:
            if answer.by != by or answer.decision == "rename":
                continue
            if answer.how == "screen":
                since_screen = 0
            else:
                count += 1
                since_screen += 1
        return _Singles(count, since_screen)

    def _settled(self) -> np.ndarray:
        """Which photographs are not asked about: labelled, set aside, given to somebody, unreadable, or
        not seen yet; bool (N,)."""
        settled = ~self._is_seen
        settled[self._rows(self._answered() | self._given_out())] = True
        return settled

    def _answered(self) -> set[str]:
        """The photographs that have a class, were set aside, or cannot be read."""
        return {*self.answers.labels, *self.answers.set_aside, *self._broken}

    def _given_out(self) -> set[str]:
        """The photographs that somebody is asked about."""
        return {name for given in self._given.values() for name in given.question.photographs}

    def _rows(self, names: Iterable[str]) -> list[int]:
        """Rows of the photographs that are there."""
        return [self._row[name] for name in names if name in self._row]

    def _instructive(self) -> Question | None:
        """The photograph that teaches most."""
        settled = self._settled()
        cover, rows = self._up_to_date_cover()
        if cover is None or settled[rows].all():
            return self._unseen_one()
        head, labelled = self._solved()
        unsure = torch.ones(len(cover.sample))
        if head is not None:
            sampled = rows[cover.sample]
            unsure = unsureness(head.scores(self._features[sampled]))
            refused = self._rows(self.answers.refused)
            unsure[torch.from_numpy(np.isin(sampled, refused))] = 1.0
        position = np.full(len(self._names), -1)
        position[rows] = np.arange(len(rows))
        covering = position[labelled]
        chosen = cover.next(covering[covering >= 0], settled[rows], unsure, 1)
        name = self._names[rows[chosen[0]]]
        return Question(self._next_number(), "typed", (name,))

    def _up_to_date_cover(self) -> tuple[Cover | None, np.ndarray]:
        """The cover of the photographs that were seen, and their rows; looked for anew when there are many
        more."""
        seen = np.flatnonzero(self._is_seen)
        if not len(seen):
            return None, seen
        is_all = len(seen) + len(self._broken) >= len(self._names)
        before = 0 if self._cover is None else len(self._cover[1])
        if before != len(seen) and (is_all or len(seen) >= GROWTH * before):
            self._cover = Cover(self._features[seen]), seen
        return self._cover

    def _unseen_one(self) -> Question | None:
        """A photograph that the model has not seen, while it has seen none that is not labelled."""
        answered = self._answered() | self._given_out()
        for name in self._drawn:
            if name not in answered and not self._is_seen[self._row[name]]:
                return Question(self._next_number(), "typed", (name,))
        return None

    def _random(self, by: str) -> Question | None:
        """A photograph that was drawn. If several people answer, everybody is asked some of the same, so
        that it is seen whether they agree."""
        aside = {*self.answers.set_aside, *self._broken} | self._given_out()
        for name in self._drawn:
            if name in aside or not self._is_seen[self._row[name]]:
                continue
            said = self.answers.said_by(name)
            is_others = (
                said and by not in said and all(each.how == "random" for each in said.values())
            )
            if not said or is_others:
                return Question(self._next_number(), "random", (name,))
        return None

    def _screen(self) -> Question | None:
        """Photographs that the model takes for the same class, if it is sure enough of some: of the class
        that has fewest labels for what it gains."""
        head, _ = self._solved()
        if head is None:
            return None
        free = np.flatnonzero(~self._settled())
        free = free[:: len(free) // LOOKED_AT + 1]
        if len(free) < FEWEST:
            return None
        scores = head.scores(self._features[free])
        probabilities = head.probabilities(scores).numpy()
        labels = self.answers.classes()
        for name, refused in self.answers.refused.items():
            place = np.searchsorted(free, self._row.get(name, -1))
            if place < len(free) and self._names[free[place]] == name:
                for k, number in enumerate(head.classes):
                    if labels[number] in refused:
                        probabilities[place, k] = 0
        likeliest = probabilities.argmax(1)
        counts = Counter(label.label for label in self.answers.labels.values())
        best = None
        most = 0.0
        for k, number in enumerate(head.classes):
            members = np.flatnonzero(likeliest == k)
            if len(members) < FEWEST:
                continue
            surest = members[np.argsort(-probabilities[members, k], kind="stable")][:SCREEN]
            expected = float(probabilities[surest, k].mean())
            worth = expected * len(surest) / (1 + counts[labels[number]])
            if expected >= SURE and worth > most:
                most = worth
                best = labels[number], free[surest]
        if best is None:
            return None
        label, rows = best
        names = tuple(self._names[row] for row in rows)
        return Question(self._next_number(), "screen", names, label)

    def _with_guesses(self, question: Question) -> Question:
        """A question about one photograph, with what the model takes it for now. Of one that was drawn it
        says nothing: the answer is to be the person's own."""
        head, _ = self._solved()
        row = self._row.get(question.photographs[0])
        if question.how != "typed" or head is None or row is None or not self._is_seen[row]:
            return question
        probabilities = head.probabilities(head.scores(self._features[[row]]))[0]
        labels = self.answers.classes()
        best = probabilities.topk(min(GUESSES, len(probabilities)))
        guesses = []
        for value, k in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            guesses.append((labels[head.classes[k]], value))
        return question._replace(guesses=tuple(guesses))

    # The model

    def _solved(self) -> tuple[Head | None, np.ndarray]:
        """The head of all answers, None for fewer than two classes; and the rows that it was solved from.
        Its classes are numbers of `Answers.classes`."""
        if self._head is None:
            names = [name for name in self.answers.labels if self._is_known(name)]
            rows = np.array([self._row[name] for name in names], dtype=np.int64)
            head = None
            classes, chosen = self._targets(names)
            if len(np.unique(classes)) > 1:
                head = solve(self._features[rows], classes, chosen)
            self._head = head, rows
        return self._head

    def _is_known(self, name: str) -> bool:
        """Whether a photograph is there, and was seen."""
        return name in self._row and bool(self._is_seen[self._row[name]])

    def _targets(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of labelled photographs' classes, and which were labelled on a screen."""
        numbers = {label: k for k, label in enumerate(self.answers.classes())}
        labels = self.answers.labels
        classes = np.array([numbers[labels[name].label] for name in names], dtype=np.int64)
        chosen = np.array([labels[name].how == "screen" for name in names], dtype=bool)
        return classes, chosen

    def head(self) -> tuple[Head | None, list[str]]:
        """The head of all answers, None for fewer than two classes; and the names of the classes, by its
        numbers."""
        with self._lock:
            return self._solved()[0], self.answers.classes()

    # How far it is

    def progress(self) -> SittingProgress:
        """How far it is, and how good the model is on what has no label."""
        with self._lock:
            labels = self.answers.labels
            counts = Counter(label.label for label in labels.values())
            if not self._is_estimated:  # it is asked for every other second
                self._estimated = self._estimate()
                self._is_estimated = True
            return SittingProgress(
                len(self._names),
                int(self._is_seen.sum()),
                len(labels),
                len(self.answers.set_aside),
                len(self._broken),
                len(self._names) - len(self._rows(self._answered())),
                tuple((label, counts[label]) for label in self.classes()),
                self._estimated,
                self.answers.agreement(),
            )

    def _estimate(self) -> Estimate | None:
        """How many of the rest the model gets right, and what MORE labels would gain."""
        head, rows = self._solved()
        if head is None:
            return None
        settled = ~self._is_seen
        settled[self._rows(self._answered())] = True
        left = np.flatnonzero(~settled)
        left = left[:: len(left) // LOOKED_AT + 1]
        sure = 1 - unsureness(head.scores(self._features[left])).numpy()
        return share_right(self._random_answers(), sure, len(rows), MORE)

    def _random_answers(self) -> Drawn:
        """What the model took the last random photographs for, before it was said what they are."""
        drawn = []
        labels = self.answers.labels
        for answer in reversed(self.answers.standing):
            if len(drawn) == LATEST:
                break
            if answer.how == "random" and answer.learned and answer.photographs[0] in labels:
                label = labels[answer.photographs[0]].label
                right = self.answers.now_called(answer.guess) == label
                drawn.append((right, answer.sure, answer.learned))
        drawn = np.array(drawn[::-1]).reshape(-1, 3)
        return Drawn(drawn[:, 0] == 1, drawn[:, 1], drawn[:, 2])


def class_name(text: str) -> str:
    """The name of a class, without what cannot be printed. Raises ValueError if there is none."""
    name = " ".join(printable(text).split())
    if not name:
        raise ValueError("the class needs a name")
    if len(name) > LONGEST:
        raise ValueError(
            f"the name of a class is {len(name)} characters long; at most {LONGEST} are"
        )
    return name


def _is_text(name: str) -> bool:
    """Whether the name of a file can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lot(name: str) -> bytes:
    """What decides when a photograph is drawn."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
