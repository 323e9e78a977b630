"""A labelling session: people label the images of a folder, and their answers are stored.

photographs.py keeps the images, answers.py the answers, questions.py chooses the next question;
this module joins them. All methods are thread-safe.

Legend: N images, D width of the features.
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
    LABELS,
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

MORE = 50  # number of labels whose expected gain is shown
PHOTOGRAPHS = "photographs"  # in the session's directory: a link to the folder of the images


Decision = Literal["class", "leave out", "not sure"]
"""The decision about an image: its class, leave it out, or not sure."""


@dataclass(frozen=True)
class LabelProgress:
    """The progress of a labelling session."""

    photographs: int
    """Number of images in the folder."""
    seen: int
    """Number of images with features."""
    labelled: int
    """Number of images with a class."""
    set_aside: int
    """Number of images that were left out, or marked as not sure."""
    unreadable: int
    """Number of images that are unreadable or deleted."""
    left: int
    """Number of readable images without an answer."""
    classes: tuple[tuple[str, int], ...]
    """The classes, with the number of images of each."""
    estimate: Estimate | None
    """Estimated accuracy of the model on unlabelled images, and the gain from MORE labels; None if
    too few images were drawn at random."""
    agreement: tuple[float, int] | None
    """Cohen's kappa of two people's answers, and the number of images that both answered; None
    without any."""


class LabelSession:
    """The images, the answers and the choice of questions of one session."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        classes: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        """names: of the images, relative to their folder. folder: of this session, with earlier
        answers; it must exist. classes: names of classes that exist before any label.

        Raises VitkitError for a journal that is damaged, and for two classes of one name; OSError.
        """
        self.folder = folder
        self.journal = Journal(folder)
        self.problem = ""
        """Why the table of labels could not be written; "" if it could. The journal has all answers."""
        # Names may be separated by commas, as in lists
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

    # Images

    def arrive(self, names: Sequence[str]) -> None:
        """Add images that have appeared in the folder."""
        with self._lock:
            self._photographs.arrive(names)

    def see(self, names: Sequence[str], features: np.ndarray) -> None:
        """Add the features of images, (n, D)."""
        with self._lock:
            self._photographs.see(names, features)
            self._is_estimated = False
            if any(name in self.answers.labels for name in names):
                self._questions.forget_head()

    def lose(self, name: str, problem: str) -> None:
        """Record that an image is unreadable or deleted."""
        with self._lock:
            self._photographs.broken[name] = problem
            self._is_estimated = False
            self._given_out.withdraw(name)

    def recover(self, name: str) -> None:
        """Try an unreadable image again: it may have been an incomplete copy, or deleted for a
        while."""
        with self._lock:
            self._photographs.recover(name)

    def unseen(self, most: int | None = None) -> list[str]:
        """The images without features, at most this many; those that have answers come first."""
        with self._lock:
            return self._photographs.unseen(self.answers.labels, most)

    def seen(self) -> int:
        """The number of images with features."""
        with self._lock:
            return int(self._photographs.is_seen.sum())

    def names(self) -> list[str]:
        """The names of all images, including deleted ones."""
        with self._lock:
            return list(self._photographs.names)

    def has(self, name: str) -> bool:
        """Whether this is an image of the session, so that it may be shown."""
        return name in self._photographs.row

    def unreadable(self) -> dict[str, str]:
        """The unreadable images, and why."""
        with self._lock:
            return dict(self._photographs.broken)

    def features(self) -> tuple[list[str], np.ndarray]:
        """The images with features, and their features: float16 (N, D)."""
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
        """The images to which people gave different classes."""
        with self._lock:
            return self.answers.differences()

    def labels(self) -> dict[str, str]:
        """The class of each labelled image."""
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

        label: the class, for a single image. others: the images of a screen that are not of its class.

        Raises VitkitError for a question that is not reserved for this person, or a class without a
        name; OSError.
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
        """An answer with the model's prediction for its image. Unchanged if a person has labelled
        the image, since the model has then learned from it."""
        head, rows = self._questions.solved()
        name = answer.photographs[0]
        if head is None or self.answers.said_by(name) or not self._photographs.was_seen(name):
            return answer
        scores = head.scores(self._photographs.features[[self._photographs.row[name]]])
        guess = self.answers.classes()[head.classes[int(scores.argmax())]]
        sure = 1 - float(unsureness(scores))
        return replace(answer, guess=guess, sure=sure, learned=len(rows))

    def rename(self, by: str, old: str, new: str) -> Answer:
        """Rename a class. If another class has the new name, the two are merged. Raises VitkitError
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
        """Undo a person's last answer, and ask that question again; None if there is none. Raises
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
        """Update what depends on the current answers."""
        self._questions.forget_head()
        self._is_estimated = False
        self.problem = ""
        try:
            write_labels(self.folder / LABELS, PHOTOGRAPHS, self.answers)
        except OSError as error:
            self.problem = f"{self.folder / LABELS} could not be written: {error.strerror or error}"

    # Questions

    def ask(self, by: str) -> Question | None:
        """The next question for a person: the same one until it is answered. None if there is nothing
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
        """The head fitted to all answers, None for fewer than two classes; and the names of its
        classes, in order."""
        with self._lock:
            return self._questions.solved()[0], self.answers.classes()

    # Progress

    def progress(self) -> LabelProgress:
        """The progress, and the estimated accuracy on unlabelled images."""
        with self._lock:
            labels = self.answers.labels
            counts = Counter(label.label for label in labels.values())
            if not self._is_estimated:  # cached, since the page asks every other second
                self._estimated = self._estimate()
                self._is_estimated = True
            count = len(self._photographs.names)
            answered = self._photographs.rows(self._questions.answered())
            return LabelProgress(
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
        """The estimated accuracy on unlabelled images, and the gain from MORE labels."""
        head, rows = self._questions.solved()
        if head is None:
            return None
        left = np.flatnonzero(self._photographs.seen_but(self._questions.answered()))
        left = left[:: len(left) // LOOKED_AT + 1]
        sure = 1 - unsureness(head.scores(self._photographs.features[left])).numpy()
        return share_right(self._random_answers(), sure, len(rows), MORE)

    def _random_answers(self) -> Drawn:
        """The model's predictions for the latest random images, made before their labels were known."""
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
    """Raises VitkitError for two names that are equal except for case."""
    spellings: dict[str, str] = {}
    for name in names:
        other = spellings.get(name.casefold())
        if other is not None:
            raise BadSettings(
                f"`classes` names {other!r} and {name!r}, which are one class; name it once"
            )
        spellings[name.casefold()] = name


def class_name(text: str) -> str:
    """The name of a class without unprintable characters. Raises VitkitError if nothing is left."""
    name = " ".join(printable(text).split())
    if not name:
        raise BadSettings("the class needs a name")
    if len(name) > LONGEST:
        raise BadSettings(
            f"the name of a class is {len(name)} characters long; at most {LONGEST} are"
        )
    return name
