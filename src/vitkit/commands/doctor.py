"""`vitkit doctor`: what is wrong, and what could be better: of this machine (doctor_machine.py), or of
a run, images or a model (doctor_run.py, doctor_data.py, doctor_model.py)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vitkit.commands.findings import Finding


@dataclass
class Doctor:
    """Say what this machine and this installation can do, what is fast, and what is missing, with
    a line of advice where something can be better. Of --data, --model and --run it says what is
    wrong with those instead, in a minute or so."""

    data: str = ""
    """Images to examine: classes, balance, broken ones, duplicates between parts."""
    model: str = ""
    """A model to examine: its preprocessing; and with --data, whether it can learn a few of those
    images by heart, and whether it would wait for them."""
    run: Path | None = None
    """A run to examine: its loss, rate, gradients, data and preprocessing."""
    device: str = "auto"
    """Where --model computes: cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    json: bool = False
    """Print JSON."""


def doctor(command: Doctor) -> int:
    """Print a table of findings, then the advice."""
    findings = []
    if command.run or command.data or command.model:
        findings += _examinations(command)
    else:
        from vitkit.commands.doctor_machine import examine_machine

        findings += examine_machine()
    if command.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
        return 0

    table = Table("what", "here")
    table.columns[1].overflow = "fold"
    for finding in findings:
        table.add_row(finding.name, finding.value)
    console = Console(highlight=False, markup=False)
    console.print(table)
    advice = [finding.advice for finding in findings if finding.advice]
    for sentence in advice:
        console.print(f"- {sentence}", soft_wrap=True)
    if not advice:
        print("nothing to advise")
    if command.run or command.data or command.model:
        print("next: vitkit doctor alone examines this machine")
    else:
        print("next: vitkit train digits, a model in a minute or two")
    return 0


def _examinations(command: Doctor) -> Iterator[Finding]:
    """What is asked for of --run, --data and --model."""
    if command.run:
        from vitkit.commands.doctor_run import examine_run

        yield from examine_run(command.run)
    if not command.data and not command.model:
        return

    from vitkit.commands.doctor_data import examine_data
    from vitkit.commands.doctor_model import Examined, examine_learning, examine_model
    from vitkit.data import open_splits
    from vitkit.system.machine import pick_device
    from vitkit.weights import Hints, load_with_account

    classifier = None
    if command.model:
        classifier, account = load_with_account(command.model, Hints())
        yield from examine_model(command.model, classifier, account)
    if command.data:
        splits = open_splits(command.data)
        yield from examine_data(command.data, splits)
        if classifier is not None:
            device = pick_device(command.device)
            yield from examine_learning(Examined(command.data, splits, classifier, device))
