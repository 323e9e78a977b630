"""Checking of labelled images on the page of a labelling session: the findings of a review, one by one.

Each image with a finding is a question: keep its class, change it, or leave the image out. The
decisions are stored in a journal, as in labelling, and written as a list that `vitkit data review
--apply` and `--data.exclude` read.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from vitkit.apps.label.answers import Answer, CurrentAnswers, DifferentLabels, Journal
from vitkit.apps.label.questions import GivenOut, Question
from vitkit.apps.label.session import Decision, LabelProgress, class_name
from vitkit.curation.corrections import LEAVE_OUT, RELABEL
from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import write_whole

LIST = "reviewed.txt"


class Check(NamedTuple):
    """An image to decide on."""

    photograph: str
    """Name of the image in the data set."""
    part: str
    label: str
    """Its class."""
    reason: str
    """The finding, for people."""
    guess: str = ""
    """The class that the image probably has; "" if its class is not in doubt."""
    beside: str = ""
    """The image that it duplicates; "" if it is no duplicate."""


class Checking:
    """Images with classes, and people's decisions about them. All methods are thread-safe."""

    def __init__(
        self,
        checks: Sequence[Check],
        classes: Sequence[str],
        folder: Path,
        heading: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        """checks: one per image, in the order of the questions. folder: of the decisions; it must exist.
        heading: the first line of the list, by which its readers recognise the data set.

        Raises VitkitError for a journal that is damaged, OSError.
        """
        self.folder = folder
        self.journal = Journal(folder)
        self.problem = ""
        """Why the list could not be written; "" if it could. The journal has all decisions."""
        self._heading = heading
        self._checks = {check.photograph: check for check in checks}
        self._beside = {check.beside for check in checks if check.beside}
        self._classes = tuple(classes)
        self._lock = threading.RLock()
        self._given_out = GivenOut(clock)

    @property
    def answers(self) -> CurrentAnswers:
        """All current decisions."""
        return self.journal.answers

    @property
    def file(self) -> Path:
        """The file of the list of decisions."""
        return self.folder / LIST

    def has(self, name: str) -> bool:
        """Whether an image may be shown: one to decide on, or the original of a duplicate."""
        return name in self._checks or name in self._beside

    def classes(self) -> list[str]:
        """The classes of the data set."""
        return list(self._classes)

    def ask(self, by: str) -> Question | None:
        """The next image to decide on: the same one until it is decided. None if all are
        decided."""
        with self._lock:
            question = self._given_out.current(by)
            if question is not None:
                return question
            decided = {*self.answers.labels, *self.answers.set_aside}
            decided |= self._given_out.photographs()
            for check in self._checks.values():
                if check.photograph not in decided:
                    return self._give(by, check)
            return None

    def say(
        self,
        by: str,
        question: int,
        decision: Decision,
        label: str = "",
        others: Sequence[str] = (),
    ) -> Answer:
        """Record the decision about an image: its class, which may be the current one, or to leave
        it out. It is on disk when this returns.

        Raises VitkitError for a question that is not reserved for this person, or a class without a
        name; OSError.
        """
        with self._lock:
            asked = self._given_out.to_answer(by, question)
            if decision == "class":
                label = class_name(label)
                if label not in {*self._classes, self._checks[asked.photographs[0]].label}:
                    raise BadSettings(
                        f"the data set has no class {label!r}; make its folder, and start this again"
                    )
            else:
                label = ""
            number = self.answers.last + 1
            answer = Answer(number, by, "check", decision, label, asked.photographs)
            self.journal.add(answer)
            self._given_out.done(by)
            self._write()
            return answer

    def undo(self, by: str) -> Answer | None:
        """Undo a person's last decision, and ask that question again; None if there is none. Raises
        OSError."""
        with self._lock:
            answer = self.journal.take_back(by)
            if answer is None:
                return None
            check = self._checks.get(answer.photographs[0])
            if check is not None:
                self._give(by, check)
            self._write()
            return answer

    def rename(self, by: str, old: str, new: str) -> Answer:
        """Always raises VitkitError, because the classes belong to the data set."""
        raise BadSettings("the classes are those of the data set; rename their folders")

    def lose(self, name: str, problem: str) -> None:
        """Record that an image cannot be shown. It can still be decided on, most likely to leave it
        out."""

    def unreadable(self) -> dict[str, str]:
        """Always empty: unreadable images are questions here."""
        return {}

    def differences(self) -> list[DifferentLabels]:
        """The images about which people decided differently."""
        with self._lock:
            return self.answers.differences()

    def progress(self) -> LabelProgress:
        """The progress; its classes are the new ones of images that were moved."""
        with self._lock:
            counts = Counter(label for _, label in self._other_classes())
            aside = self.answers.set_aside
            # The journal may have decisions about images that the current review does not name
            aside = {name: said for name, said in aside.items() if name in self._checks}
            decided = len({*self.answers.labels, *aside} & self._checks.keys())
            return LabelProgress(
                photographs=len(self._checks),
                seen=len(self._checks),
                labelled=decided,
                set_aside=sum(decision == "leave out" for decision in aside.values()),
                unreadable=0,
                left=len(self._checks) - decided,
                classes=tuple(counts.most_common()),
                estimate=None,
                agreement=self.answers.agreement(),
            )

    def _other_classes(self) -> list[tuple[str, str]]:
        """The images that were moved to another class, with that class."""
        found = []
        for name, label in self.answers.labels.items():
            check = self._checks.get(name)
            if check is not None and label.label != check.label:
                found.append((name, label.label))
        return found

    def _give(self, by: str, check: Check) -> Question:
        guesses = ((check.guess, 1.0),) if check.guess else ()
        question = Question(
            "check", (check.photograph,), check.label, guesses, check.reason, check.beside
        )
        return self._given_out.give(by, question)

    def write(self) -> None:
        """Write the list of all changes; `problem` is set if that fails."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        lines = [self._heading]
        for name, label in self._other_classes():
            check = self._checks[name]
            lines.append("\t".join((name, RELABEL, label, check.label, check.part)))
        for name, decision in self.answers.set_aside.items():
            if name in self._checks and decision == "leave out":
                check = self._checks[name]
                lines.append("\t".join((name, LEAVE_OUT, "", check.label, check.part)))
        self.problem = ""
        try:
            write_whole(self.file, ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
        except OSError as error:
            self.problem = f"{self.file} could not be written: {error.strerror or error}"
