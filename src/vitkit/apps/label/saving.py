"""Output of a labelling session: a model that `vitkit teach` can extend, and folders of links."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.apps.label.session import LabelSession
from vitkit.evaluation import (
    Memory,
    Metric,
    NewExamples,
    changed,
    digest_of,
    fit,
    left_out_quality,
    save_taught,
)
from vitkit.prediction import Sorter
from vitkit.system.errors import BadSettings
from vitkit.system.machine import Precision
from vitkit.weights import Classifier, adopt

MODEL = "model"


class TakenHome(NamedTuple):
    """A model that was fitted to the labels so far."""

    path: Path
    photographs: int
    """Number of images that the model has learned from."""
    unseen: int
    """Number of labelled images without features: not yet processed, or deleted."""
    metrics: tuple[Metric, ...]
    """Leave-one-out metrics of the model."""


def save_model(
    session: LabelSession, classifier: Classifier, root: Path, precision: Precision, origin: str
) -> TakenHome:
    """Write the model of all labelled images. origin: the name of the pre-trained model.

    Raises VitkitError for fewer than two classes, OSError.
    """
    labels = session.labels()
    if len(set(labels.values())) < 2:
        raise BadSettings(
            "a model needs two classes or more; label photographs of another class first"
        )
    names, x = session.features()
    examples = []
    rows = []
    for row, name in enumerate(names):
        if name in labels:
            try:
                digest = digest_of((root / name).read_bytes())
            except OSError:  # deleted
                continue
            examples.append((digest, name, labels[name]))
            rows.append(row)
    digests, kept, classes = zip(*examples, strict=True) if examples else ((), (), ())
    new = NewExamples(x[rows].astype(np.float32), digests, kept, classes)
    memory = Memory(np.empty((0, 0), np.float32), precision=precision)
    memory = changed(memory, "labelled by hand", add=[new])
    fitted = fit(memory)
    metrics = tuple(left_out_quality(fitted, memory.targets, balanced=memory.balanced))

    fresh, _ = adopt(classifier, labels=("0", "1"), new_head=True)
    facts = {
        "init": origin,
        "head": f"linear probe of labelled photographs, temperature {fitted.temperature:.3g}",
        "metrics": {metric.name: metric.text() for metric in metrics},
    }
    folder = session.folder / MODEL
    save_taught(folder, replace(fresh, origin=facts), memory, fitted)
    return TakenHome(folder, len(rows), len(labels) - len(rows), metrics)


def sort_into(session: LabelSession, root: Path, folder: Path) -> str:
    """Make a link to each labelled image in the folder of its class; returns a sentence about the result.
    Links from earlier calls stay, even if an image has another class now. Raises OSError."""
    # The journal is untrusted: names that are not images of this folder are ignored
    labels = {name: label for name, label in session.labels().items() if session.has(name)}
    sorter = Sorter(folder, sorted(set(labels.values())), 0.0)
    for name, label in sorted(labels.items()):
        if (root / name).exists():
            sorter.put(root / name, label)
    return sorter.summary()
