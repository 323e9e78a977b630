"""Which question comes next, of the photographs that the model has seen and the answers that stand.

A question is about one photograph, or a screen of photographs that the model takes for the same class. One in
RANDOM single photographs is drawn at random, so that how good the model is can be told (estimate.py); the
others are those that teach most (active_learning.py). After every few single ones comes a screen, as soon as the
model is sure enough of one.

Legend: N photographs, K classes that have a label.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from vitkit.apps.label.active_learning import Cover
from vitkit.apps.label.answers import CurrentAnswers, How, Journal
from vitkit.apps.label.head import Head, solve, unsureness
from vitkit.apps.label.photographs import PhotographFolder
from vitkit.system.errors import BadSettings

SCREEN = 24  # photographs of a screen
FEWEST = 4  # photographs that are worth a screen
SURE = 0.9  # of a screen's photographs that are expected to be of its class
BETWEEN = 3  # single photographs between two screens
RANDOM = 5  # one in so many single photographs is drawn at random
GROWTH = 1.25  # how many more photographs there are when typical ones are looked for anew
LOOKED_AT = 20_000  # unlabelled photographs that a screen is chosen from
GUESSES = 5  # classes that are proposed for one photograph
GIVEN_OUT = 300.0  # seconds for which a photograph is one person's to answer


class Question(NamedTuple):
    """A question to a person."""

    how: How
    photographs: tuple[str, ...]
    """One; or those of a screen, the surest first."""
    label: str = ""
    """The class of a screen; of a photograph that is checked, the one that it has."""
    guesses: tuple[tuple[str, float], ...] = ()
    """The most likely classes of one photograph, and their probabilities, best first; none while there is no
    model."""
    reason: str = ""
    """Why a photograph is checked, in words."""
    beside: str = ""
    """The photograph that one to be checked repeats, if it does."""
    number: int = 0
    """Counted as questions are given out."""


class Questions:
    """Chooses the next question for each person. Not for several threads at once."""

    def __init__(self, photographs: PhotographFolder, journal: Journal):
        self.photographs = photographs
        self.journal = journal
        self._cover: tuple[Cover, np.ndarray] | None = None
        self._head: tuple[Head | None, np.ndarray] | None = None

    @property
    def answers(self) -> CurrentAnswers:
        """All current answers."""
        return self.journal.answers

    def next(self, by: str, given_out: set[str]) -> Question | None:
        """The next question for a person; None if there is nothing to ask. given_out: the
        photographs that somebody is asked about now."""
        # How many single photographs somebody has answered, and how many since a screen
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
        question = None
        if since_screen >= BETWEEN:
            question = self._screen(given_out)
        if question is None and count % RANDOM == RANDOM - 1:
            question = self._random(by, given_out)
        return (
            question
            or self._instructive(given_out)
            or self._screen(given_out)
            or self._random(by, given_out)
        )

    def _free(self, given_out: set[str]) -> np.ndarray:
        """The photographs that may be asked about: seen, not labelled, set aside or unreadable, and not
        given to somebody; bool (N,)."""
        return self.photographs.seen_but(self.answered() | given_out)

    def answered(self) -> set[str]:
        """The photographs that have a class, were set aside, or cannot be read."""
        return {*self.answers.labels, *self.answers.set_aside, *self.photographs.broken}

    def _instructive(self, given_out: set[str]) -> Question | None:
        """The photograph that teaches most."""
        free = self._free(given_out)
        cover, rows = self._up_to_date_cover()
        if cover is None or not free[rows].any():
            return self._unseen_one(given_out)
        head, labelled = self.solved()
        unsure = torch.ones(len(cover.sample))
        if head is not None:
            sampled = rows[cover.sample]
            unsure = unsureness(head.scores(self.photographs.features[sampled]))
            refused = self.photographs.rows(self.answers.refused)
            unsure[torch.from_numpy(np.isin(sampled, refused))] = 1.0
        position = np.full(len(self.photographs.names), -1)
        position[rows] = np.arange(len(rows))
        covering = position[labelled]
        chosen = cover.next(covering[covering >= 0], ~free[rows], unsure, 1)
        name = self.photographs.names[rows[chosen[0]]]
        return Question("typed", (name,))

    def _up_to_date_cover(self) -> tuple[Cover | None, np.ndarray]:
        """The cover of the photographs that were seen, and their rows; looked for anew when there are many
        more."""
        seen = np.flatnonzero(self.photographs.is_seen)
        if not len(seen):
            return None, seen
        is_all = len(seen) + len(self.photographs.broken) >= len(self.photographs.names)
        before = 0 if self._cover is None else len(self._cover[1])
        if before != len(seen) and (is_all or len(seen) >= GROWTH * before):
            self._cover = Cover(self.photographs.features[seen]), seen
        return self._cover or (None, seen)

    def _unseen_one(self, given_out: set[str]) -> Question | None:
        """A photograph that the model has not seen, while it has seen none that is not labelled."""
        answered = self.answered() | given_out
        for name in self.photographs.drawn:
            if name not in answered and not self.photographs.is_seen[self.photographs.row[name]]:
                return Question("typed", (name,))
        return None

    def _random(self, by: str, given_out: set[str]) -> Question | None:
        """A photograph that was drawn. If several people answer, everybody is asked some of the same, so
        that it is seen whether they agree."""
        aside = {*self.answers.set_aside, *self.photographs.broken} | given_out
        for name in self.photographs.drawn:
            if name in aside or not self.photographs.is_seen[self.photographs.row[name]]:
                continue
            said = self.answers.said_by(name)
            is_others = (
                said and by not in said and all(each.how == "random" for each in said.values())
            )
            if not said or is_others:
                return Question("random", (name,))
        return None

    def _screen(self, given_out: set[str]) -> Question | None:
        """Photographs that the model takes for the same class, if it is sure enough of some: of the class
        that has fewest labels for what it gains."""
        head, _ = self.solved()
        if head is None:
            return None
        free = np.flatnonzero(self._free(given_out))
        free = free[:: len(free) // LOOKED_AT + 1]
        if len(free) < FEWEST:
            return None
        scores = head.scores(self.photographs.features[free])
        probabilities = head.probabilities(scores).numpy()
        labels = self.answers.classes()
        for name, refused in self.answers.refused.items():
            place = np.searchsorted(free, self.photographs.row.get(name, -1))
            if place < len(free) and self.photographs.names[free[place]] == name:
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
        names = tuple(self.photographs.names[row] for row in rows)
        return Question("screen", names, label)

    def with_guesses(self, question: Question) -> Question:
        """A question about one photograph, with what the model takes it for now. For a photograph
        that was drawn at random there is no guess: the answer should be the person's own."""
        head, _ = self.solved()
        row = self.photographs.row.get(question.photographs[0])
        if (
            question.how != "typed"
            or head is None
            or row is None
            or not self.photographs.is_seen[row]
        ):
            return question
        probabilities = head.probabilities(head.scores(self.photographs.features[[row]]))[0]
        labels = self.answers.classes()
        best = probabilities.topk(min(GUESSES, len(probabilities)))
        guesses = []
        for value, k in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            guesses.append((labels[head.classes[k]], value))
        return question._replace(guesses=tuple(guesses))

    # The model

    def solved(self) -> tuple[Head | None, np.ndarray]:
        """The head of all answers, None for fewer than two classes; and the rows that it was solved from.
        Its classes are numbers of `CurrentAnswers.classes`."""
        if self._head is None:
            names = [name for name in self.answers.labels if self.photographs.was_seen(name)]
            rows = np.array([self.photographs.row[name] for name in names], dtype=np.int64)
            head = None
            # The numbers of labelled photographs' classes, and which were labelled on a screen
            numbers = {label: k for k, label in enumerate(self.answers.classes())}
            labels = self.answers.labels
            classes = np.array([numbers[labels[name].label] for name in names], dtype=np.int64)
            chosen = np.array([labels[name].how == "screen" for name in names], dtype=bool)
            if len(np.unique(classes)) > 1:
                head = solve(self.photographs.features[rows], classes, chosen)
            self._head = head, rows
        return self._head

    def forget_head(self) -> None:
        """Discard the head, because answers have changed, or because more labelled photographs have
        features."""
        self._head = None


@dataclass
class _Given:
    """A question that was given out."""

    question: Question
    until: float


class GivenOut:
    """The questions that people have, each of them for GIVEN_OUT seconds after they last asked. Not for
    several threads at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._given: dict[str, _Given] = {}  # by who was asked
        self._count = 0

    def give(self, by: str, question: Question) -> Question:
        """Give a person a question; returns it with its number."""
        self._count += 1
        question = question._replace(number=self._count)
        self._given[by] = _Given(question, self._clock() + GIVEN_OUT)
        return question

    def current(self, by: str) -> Question | None:
        """The question that somebody has not answered yet, which is theirs for as long again; None if
        there is none."""
        given = self._given.get(by)
        if given is None or given.until <= self._clock():
            return None
        given.until = self._clock() + GIVEN_OUT
        return given.question

    def to_answer(self, by: str, number: int) -> Question:
        """The question that somebody answers. It stays theirs until `done`. Raises VitkitError for
        one that they were not given."""
        given = self._given.get(by)
        if given is None or given.question.number != number:
            raise BadSettings("this question was answered already, or given to somebody else")
        return given.question

    def done(self, by: str) -> None:
        """Record that a person's question is answered."""
        del self._given[by]

    def withdraw(self, name: str) -> None:
        """Take back all questions about a photograph."""
        for by, given in list(self._given.items()):
            if name in given.question.photographs:
                del self._given[by]

    def rename(self, old: str, new: str) -> None:
        """A class is called otherwise, and so are the screens of it that somebody has."""
        for given in self._given.values():
            if given.question.label == old:
                given.question = given.question._replace(label=new)

    def photographs(self) -> set[str]:
        """The photographs that somebody is asked about. Questions whose time is up are free
        again."""
        now = self._clock()
        self._given = {by: given for by, given in self._given.items() if given.until > now}
        return {name for given in self._given.values() for name in given.question.photographs}
