"""`vitkit doctor`: finds faults and possible improvements of this machine (machine.py), a run
(run.py), or a model and images (model.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps as to_json
from pathlib import Path
from typing import Unpack

from rich.markup import escape
from rich.table import Table

from vitkit.apps.doctor.finding import Fact
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import step
from vitkit.system.functions.types import DataLike, DeviceLike, Messages, PathLike
from vitkit.weights import ModelLike


@dataclass(frozen=True, repr=False)
class Diagnosis(Rows):
    """Facts, each with advice if something could be better."""

    findings: tuple[Fact, ...]
    of_machine: bool = True
    """Whether the facts are about this machine, not about a run, images or a model."""
    json: bool = False
    """Whether the result is printed as JSON."""

    @property
    def advice(self) -> list[str]:
        """The advice of all facts that have some."""
        return [finding.advice for finding in self.findings if finding.advice]

    def rows(self) -> list[dict]:
        """One row per finding: name, value, advice."""
        return [finding._asdict() for finding in self.findings]

    def shown(self) -> Iterator[str | Table]:
        """A table of the findings, then the advice; or JSON."""
        if self.json:
            yield to_json(self.rows(), indent=1)
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
        if self.of_machine:
            yield f"next: {step('train', 'digits')}, a model in a minute or two"
        else:
            yield f"next: {step('doctor')} alone examines this machine"


@public
def doctor(
    *,
    data: DataLike = "",
    model: ModelLike = "",
    run: PathLike | None = None,
    device: DeviceLike = "auto",
    json: bool = False,
    **messages: Unpack[Messages],
) -> Diagnosis:
    """Print what this machine and this installation can do, what is fast, and what is missing, with
    advice for everything that can be improved. With `data`, `model` or `run`, print what is wrong
    with these instead, which takes about a minute.

    Args:
        data: Images to examine: classes, balance, broken ones, duplicates between parts.
        model: A model to examine: its preprocessing; and with `data`, whether it can memorise a few of
            those images, and whether training would wait for the images.
        run: A run to examine: its loss, learning rate, gradients, data and preprocessing.
        device: Device for `model`: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        json: Print JSON.

    Raises:
        VitkitError: If `data` holds no images, `model` is no model, or `run` no run.
    """
    if device != "auto":
        from vitkit.system.machine import pick_device

        pick_device(device)  # raises for a device that this machine does not have
    if run or data or model:
        return Diagnosis(tuple(_examinations(data, model, run, device)), False, json)
    from vitkit.apps.doctor.machine import examine_machine

    return Diagnosis(tuple(examine_machine()), True, json)


def _examinations(data: str, model: ModelLike, run: Path | None, device: str) -> Iterator[Fact]:
    """The requested examinations of a run, images and a model."""
    if run:
        from vitkit.apps.doctor.run import examine_run

        yield from examine_run(run)
    if not data and not model:
        return

    from vitkit.apps.doctor.model import Examined, examine_data, examine_learning, examine_model
    from vitkit.data import splits_at
    from vitkit.system.functions.arguments import name_of
    from vitkit.system.machine import pick_device
    from vitkit.weights import Classifier, Hints, load_with_account

    classifier = None
    if isinstance(model, Classifier):
        classifier = model
        yield from examine_model(name_of(model), classifier, [])
    elif model:
        classifier, account = load_with_account(model, Hints())
        yield from examine_model(name_of(model), classifier, account)
    if data:
        splits = splits_at(data, typed=True)
        yield from examine_data(data, splits)
        if classifier is not None:
            yield from examine_learning(Examined(data, splits, classifier, pick_device(device)))
