"""What `teach` shows: the classes, every photograph, or JSON."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from vitkit.evaluation import Memory, Metric, Probe
from vitkit.system.console.text import printable, printable_name


def as_json(memory: Memory, metrics: Sequence[Metric]) -> dict:
    """What it knows, as plain values."""
    counts = np.bincount(memory.targets, minlength=len(memory.classes)).tolist()
    return {
        "classes": dict(zip(memory.classes, counts, strict=True)),
        "metrics": {metric.name: metric.to_json() for metric in metrics},
        "changes": [change.text for change in memory.changes],
    }


def class_tables(memory: Memory, fitted: Probe, metrics: Sequence[Metric]) -> Iterator[str | Table]:
    """The classes, and how good the answers are."""
    right = (fitted.left_out.argmax(1).numpy() == memory.targets).astype(float)
    table = Table("class", "photographs", "right, by the others alone")
    for column in table.columns[1:]:
        column.justify = "right"
    for k, label in enumerate(memory.classes):
        members = memory.targets == k
        share = f"{right[members].mean():.1%}"
        table.add_row(escape(printable_name(label)), f"{members.sum():,}", share)
    yield table
    for metric in metrics:
        yield f"{metric.name} {metric.text()}"


def photograph_tables(memory: Memory) -> Iterator[Table]:
    """Every photograph, and every change."""
    table = Table("class", "photograph")
    table.columns[1].overflow = "fold"
    for i in memory.rows.tolist():
        names = (memory.label_of(i), memory.examples[i].name)
        table.add_row(*(escape(printable_name(name)) for name in names))
    yield table
    table = Table("change", "")
    for number, change in enumerate(memory.changes, 1):
        table.add_row(str(number), escape(printable(change.text)))
    yield table
