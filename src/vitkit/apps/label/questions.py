"""The choice of the next question, from the images with features and the current answers.

A question is about one image, or about a screen of images that the model predicts to be of one
class. One in RANDOM single images is drawn at random, for estimating the model's accuracy
(estimate.py); the others are the most informative ones (active_learning.py). After a few single
images comes a screen, as soon as the model is certain enough about one.

Legend: N images, K classes that have a label.
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

SCREEN = 24  # images on a screen
FEWEST = 4  # fewest images on a screen
SURE = 0.9  # smallest expected share of a screen's images that are of its class
BETWEEN = 3  # single images between two screens
RANDOM = 5  # one in this many single images is drawn at random
GROWTH = 1.25  # growth of the number of images after which the cover is computed again
LOOKED_AT = 20_000  # largest number of unlabelled images that a screen is chosen from
GUESSES = 5  # classes that are suggested for one image
GIVEN_OUT = 300.0  # seconds for which an image is reserved for one person


class Question(NamedTuple):
    """A question for a person."""

    how: How
    photographs: tuple[str, ...]
    """One image; or the images of a screen, the most probable first."""
    label: str = ""
    """The class of a screen; or the current class of an image that is checked."""
    guesses: tuple[tuple[str, float], ...] = ()
    """The most likely classes of a single image with their probabilities, best first; empty without a
    model."""
    reason: str = ""
    """Why an image is checked, for people."""
    beside: str = ""
    """The image that a checked image duplicates; "" if it is no duplicate."""
    number: int = 0
    """Sequence number of the question; 0 if not yet given to anybody."""


class Questions:
    """Chooses the next question for each person. Not thread-safe."""

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
        """The next question for a person; None if there is nothing to ask. given_out: the images that are
        reserved for others."""
        # Count the person's answers about single images: in total, and since the last screen
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
            or self._informative(given_out)
            or self._screen(given_out)
            or self._random(by, given_out)
        )

    def _available(self, given_out: set[str]) -> np.ndarray:
        """The images that may be asked about: with features, and not labelled, set aside, unreadable or
        reserved; bool (N,)."""
        return self.photographs.seen_but(self.answered() | given_out)

    def answered(self) -> set[str]:
        """The images that are labelled, set aside or unreadable."""
        return {*self.answers.labels, *self.answers.set_aside, *self.photographs.broken}

    def _informative(self, given_out: set[str]) -> Question | None:
        """A question about the most informative image."""
        free = self._available(given_out)
        cover, rows = self._up_to_date_cover()
        if cover is None or not free[rows].any():
            return self._without_features(given_out)
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
        """The cover of the images with features, and their rows; computed again when their number
        has grown by GROWTH."""
        seen = np.flatnonzero(self.photographs.is_seen)
        if not len(seen):
            return None, seen
        is_all = len(seen) + len(self.photographs.broken) >= len(self.photographs.names)
        before = 0 if self._cover is None else len(self._cover[1])
        if before != len(seen) and (is_all or len(seen) >= GROWTH * before):
            self._cover = Cover(self.photographs.features[seen]), seen
        return self._cover or (None, seen)

    def _without_features(self, given_out: set[str]) -> Question | None:
        """A question about an image without features, if all images with features are labelled."""
        answered = self.answered() | given_out
        for name in self.photographs.drawn:
            if name not in answered and not self.photographs.is_seen[self.photographs.row[name]]:
                return Question("typed", (name,))
        return None

    def _random(self, by: str, given_out: set[str]) -> Question | None:
        """A question about an image drawn at random. Several people get some of the same images,
        for measuring their agreement."""
        aside = {*self.answers.set_aside, *self.photographs.broken} | given_out
        for name in self.photographs.drawn:
            if name in aside or not self.photographs.is_seen[self.photographs.row[name]]:
                continue
            said = self.answers.said_by(name)
            needs_second_answer = (
                said and by not in said and all(each.how == "random" for each in said.values())
            )
            if not said or needs_second_answer:
                return Question("random", (name,))
        return None

    def _screen(self, given_out: set[str]) -> Question | None:
        """A screen of images that the model predicts to be of one class, if it is certain enough
        about some: of the class with the fewest labels for its expected gain."""
        head, _ = self.solved()
        if head is None:
            return None
        free = np.flatnonzero(self._available(given_out))
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
        """A question about a single image, with the model's current predictions. An image drawn at
        random gets none, so that they cannot influence the answer."""
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
        """The head fitted to all answers, None for fewer than two classes; and the rows that it was
        fitted to. Its class numbers are indices into `CurrentAnswers.classes`."""
        if self._head is None:
            names = [name for name in self.answers.labels if self.photographs.was_seen(name)]
            rows = np.array([self.photographs.row[name] for name in names], dtype=np.int64)
            head = None
            # Class numbers of the labelled images, and whether they were labelled on a screen
            numbers = {label: k for k, label in enumerate(self.answers.classes())}
            labels = self.answers.labels
            classes = np.array([numbers[labels[name].label] for name in names], dtype=np.int64)
            chosen = np.array([labels[name].how == "screen" for name in names], dtype=bool)
            if len(np.unique(classes)) > 1:
                head = solve(self.photographs.features[rows], classes, chosen)
            self._head = head, rows
        return self._head

    def forget_head(self) -> None:
        """Discard the head, because answers have changed, or because more labelled images have
        features."""
        self._head = None


@dataclass
class _Given:
    """A question that is reserved for a person, and the time until which it is."""

    question: Question
    until: float


class GivenOut:
    """The questions that are reserved for people, each for GIVEN_OUT seconds after the person's last
    request. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._given: dict[str, _Given] = {}  # by person
        self._count = 0

    def give(self, by: str, question: Question) -> Question:
        """Reserve a question for a person; returns it with its number."""
        self._count += 1
        question = question._replace(number=self._count)
        self._given[by] = _Given(question, self._clock() + GIVEN_OUT)
        return question

    def current(self, by: str) -> Question | None:
        """The person's unanswered question, whose reservation is renewed; None if there
        is none."""
        given = self._given.get(by)
        if given is None or given.until <= self._clock():
            return None
        given.until = self._clock() + GIVEN_OUT
        return given.question

    def to_answer(self, by: str, number: int) -> Question:
        """The question that a person answers; it stays reserved until `done`. Raises VitkitError if it is
        not reserved for this person."""
        given = self._given.get(by)
        if given is None or given.question.number != number:
            raise BadSettings("this question is already answered, or was given to another person")
        return given.question

    def done(self, by: str) -> None:
        """Record that a person's question is answered."""
        del self._given[by]

    def withdraw(self, name: str) -> None:
        """Cancel all questions about an image."""
        for by, given in list(self._given.items()):
            if name in given.question.photographs:
                del self._given[by]

    def rename(self, old: str, new: str) -> None:
        """Rename a class in the reserved screens."""
        for given in self._given.values():
            if given.question.label == old:
                given.question = given.question._replace(label=new)

    def photographs(self) -> set[str]:
        """The images of all reserved questions. Expired reservations are dropped."""
        now = self._clock()
        self._given = {by: given for by, given in self._given.items() if given.until > now}
        return {name for given in self._given.values() for name in given.question.photographs}
