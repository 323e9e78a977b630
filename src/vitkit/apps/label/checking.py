"""The same page over photographs that have classes: what a review found is decided one by one.

Each photograph that deserves a second look is a question: it stays as it is, belongs to another class, or is
left out. What is decided is kept in a journal, as in a sitting, and written as the list that
`vitkit data review --apply` does and `--data.exclude` reads.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from vitkit.apps.label.answers import Answer, CurrentAnswers, DifferentLabels, Journal
from vitkit.apps.label.questions import GivenOut, Question
from vitkit.apps.label.sitting import Decision, SittingProgress, class_name
from vitkit.curation.corrections import LEAVE_OUT, RELABEL
from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import write_whole

LIST = "reviewed.txt"


class Check(NamedTuple):
    """A photograph to decide on."""

    photograph: str
    """As the data set names it."""
    part: str
    label: str
    """Its class."""
    reason: str
    """What is unusual, in words."""
    guess: str = ""
    """The class that it probably has; empty if that is not in doubt."""
    beside: str = ""
    """The photograph that it repeats, if it does."""


class Checking:
    """Photographs with classes, and the decisions of people about them. All methods may be
    called from several threads at once."""

    def __init__(
        self,
        checks: Sequence[Check],
        classes: Sequence[str],
        folder: Path,
        heading: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        """checks: a photograph each, in the order in which they are asked. folder: of the decisions; it is
        there. heading: the first line of the list, by which its readers know whose it is.

        Raises VitkitError for a journal that is damaged, OSError.
        """
        self.folder = folder
        self.journal = Journal(folder)
        self.problem = ""
        """Why the list could not be written, if it could not; the journal has all decisions."""
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
        """The file of the decisions."""
        return self.folder / LIST

    def has(self, name: str) -> bool:
        """Whether a photograph may be shown: one to decide on, or one that such a one repeats."""
        return name in self._checks or name in self._beside

    def classes(self) -> list[str]:
        """The classes of the data set."""
        return list(self._classes)

    def ask(self, by: str) -> Question | None:
        """The next photograph to decide on: the same until it is decided. None if all are
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
        """Decide on the photograph that somebody was given: its class, which may be the one that it has,
        or to leave it out. It is on the disk when this returns.

        Raises VitkitError for a question that they were not given, or a class without a name; OSError.
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
        """Take back the last decision of somebody, and ask it again; None if there is none. Raises
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
        """Raises VitkitError: the classes are the data set's."""
        raise BadSettings("the classes are those of the data set; rename their folders")

    def lose(self, name: str, problem: str) -> None:
        """Record that a photograph cannot be shown. It can be decided on all the same: left out,
        most likely."""

    def unreadable(self) -> dict[str, str]:
        """Returns None: unreadable photographs are questions here."""
        return {}

    def differences(self) -> list[DifferentLabels]:
        """The photographs that people do not agree about."""
        with self._lock:
            return self.answers.differences()

    def progress(self) -> SittingProgress:
        """The progress; its classes are those that photographs got instead of their own."""
        with self._lock:
            counts = Counter(label for _, label in self._other_classes())
            aside = self.answers.set_aside
            # Decisions of an earlier review may be of photographs that this one does not name
            aside = {name: said for name, said in aside.items() if name in self._checks}
            decided = len({*self.answers.labels, *aside} & self._checks.keys())
            return SittingProgress(
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
        """The photographs that are said to be of another class, and of which."""
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
        """Write the list of all that is not to stay as it is; `problem` says if it could not be."""
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
