"""What is wrong, and what could be better: of this machine (machine.py), or of a run, images or a model
(run.py, images.py, model.py)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vitkit.verbs.definition import result, verb
from vitkit.verbs.diagnosis import Finding


@dataclass(frozen=True)
class Doctor:
    """Print what this machine and this installation can do, what is fast, and what is missing, with
    advice for everything that can be improved. With --data, --model or --run, print what is wrong
    with these instead, which takes about a minute."""

    data: str = ""
    """Images to examine: classes, balance, broken ones, duplicates between parts."""
    model: str = ""
    """A model to examine: its preprocessing; and with --data, whether it can memorise a few of
    those images, and whether training would wait for the images."""
    run: Path | None = None
    """A run to examine: its loss, learning rate, gradients, data and preprocessing."""
    device: str = "auto"
    """Device for --model: cpu, cuda, cuda:1 or mps; auto chooses the best one."""
    json: bool = False
    """Print JSON."""


@result
@dataclass(frozen=True)
class Diagnosis:
    """Facts, each with advice if something could be better."""

    settings: Doctor
    findings: tuple[Finding, ...]

    @property
    def advice(self) -> list[str]:
        """The advice, in sentences."""
        return [finding.advice for finding in self.findings if finding.advice]

    def rows(self) -> list[dict]:
        """A row for each finding: name, value, advice."""
        return [finding._asdict() for finding in self.findings]

    def shown(self) -> Iterator[str | Table]:
        """A table of the findings, then the advice; or JSON."""
        settings = self.settings
        if settings.json:
            yield json.dumps(self.rows(), indent=1)
            return
        table = Table("what", "here")
        table.columns[1].overflow = "fold"
        for finding in self.findings:
            table.add_row(escape(finding.name), escape(finding.value))
        yield table
        for sentence in self.advice:
            yield f"- {sentence}"
        if not self.advice:
            yield "nothing to advise"
        if settings.run or settings.data or settings.model:
            yield "next: vitkit doctor alone examines this machine"
        else:
            yield "next: vitkit train digits, a model in a minute or two"


@verb
def doctor(settings: Doctor) -> Diagnosis:
    """Examine this machine and this installation; or, if they are given, a run, images and a model.
    Raises ValueError if it is none of these."""
    if settings.device != "auto":
        from vitkit.system.machine import pick_device

        pick_device(settings.device)  # raises for one that this machine does not have
    if settings.run or settings.data or settings.model:
        return Diagnosis(settings, tuple(_examinations(settings)))
    from vitkit.verbs.diagnosis.machine import examine_machine

    return Diagnosis(settings, tuple(examine_machine()))


def _examinations(settings: Doctor) -> Iterator[Finding]:
    """What is asked for of a run, images and a model."""
    if settings.run:
        from vitkit.verbs.diagnosis.run import examine_run

        yield from examine_run(settings.run)
    if not settings.data and not settings.model:
        return

    from vitkit.data import splits_at
    from vitkit.system.machine import pick_device
    from vitkit.verbs.arguments import name_of
    from vitkit.verbs.diagnosis.model import Examined, examine_data, examine_learning, examine_model
    from vitkit.weights import Classifier, Hints, load_with_account

    classifier = None
    if settings.model:
        classifier = settings.model
        account = []
        if not isinstance(classifier, Classifier):
            classifier, account = load_with_account(settings.model, Hints())
        yield from examine_model(name_of(settings.model), classifier, account)
    if settings.data:
        splits = splits_at(settings.data, typed=True)
        yield from examine_data(settings.data, splits)
        if classifier is not None:
            device = pick_device(settings.device)
            yield from examine_learning(Examined(settings.data, splits, classifier, device))
