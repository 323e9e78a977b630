"""What an evaluation has measured, and how it is shown."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from vitkit.data import Source
from vitkit.evaluation import Metric, Report
from vitkit.verbs.arguments import word_of
from vitkit.verbs.definition import result
from vitkit.verbs.evaluation.tables import (
    as_json,
    check_files,
    metrics_table,
    next_command,
    report_parts,
    write,
)

if TYPE_CHECKING:
    from vitkit.verbs.evaluation.evaluate import Evaluate


@result
@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good a model is on images."""

    settings: "Evaluate"
    images: str
    """What to call the images."""
    metrics: tuple[Metric, ...]
    """What was measured, each with its interval; under torchrun empty but on rank 0."""
    details: Report | None
    """Everything that the answers tell, for images with one class each: classes, mistakes,
    calibration, the difference from another model."""
    source: Source
    """The images."""
    written: tuple[Path, ...] = ()
    """Files and directories that were asked for."""

    def __getitem__(self, name: str) -> float:
        """The value of a metric by its name, such as "top1". Raises KeyError."""
        return {metric.name: metric.value for metric in self.metrics}[name]

    @property
    def accuracy(self) -> float:
        """The share of images whose likeliest class is theirs. Raises KeyError for images of other
        targets."""
        return self["top1"]

    def report(self, path: Path | str) -> Path:
        """Write a page (.html), the numbers (.json) or a contact sheet of the mistakes (.png). Raises
        ValueError for another ending, and for images that do not have one class each."""
        if self.details is None:
            raise ValueError("reports are about images with one class each")
        file = Path(path)
        check_files([file], None)
        write([file], self.details, self.source)
        return file

    def rows(self) -> list[dict]:
        """A row for each metric."""
        rows = []
        for metric in self.metrics:
            low, high = metric.interval or (None, None)
            rows.append({"metric": metric.name, "value": metric.value, "low": low, "high": high})
        return rows

    def to_json(self) -> dict:
        """{name: {"value", "unit", "interval"}}"""
        if self.details is not None:
            return as_json(self.details)
        return {metric.name: metric.to_json() for metric in self.metrics}

    def shown(self) -> Iterator[str | Table]:
        """Tables and sentences, or JSON."""
        settings = self.settings
        if settings.json:
            yield json.dumps(self.to_json(), allow_nan=False)
            return
        model = word_of(settings.model)
        if self.details is None:
            yield f"{model} on {self.images}"
            yield metrics_table(self.metrics)
            yield f"next: vitkit predict {model} IMAGE..."
            return
        yield from report_parts(self.details)
        for path in self.written:
            yield f"wrote {path}"
        yield f"next: {next_command(settings)}"
