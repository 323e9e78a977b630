"""`vitkit probe`: a new head on a model's features, in closed form."""

import json
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from vitkit.commands.arguments import (
    Data,
    DataColumns,
    Device,
    Model,
    ModelHints,
    OnBadImage,
    Precision,
    pick_precision,
)
from vitkit.commands.leaving_out import splits_without_broken
from vitkit.data import Columns, Source, Splits
from vitkit.evaluate import Features, Metric
from vitkit.evaluate.probe import Probe
from vitkit.system.files import check_can_be_made
from vitkit.system.text import as_word, counted, printable
from vitkit.weights import Classifier
from vitkit.weights.said import Hints

if TYPE_CHECKING:
    from vitkit.evaluate.teach import Memory


@dataclass
class FitProbe:
    """Fit a linear head to the features of your images, in seconds and without training, and save
    the model with it. All images but the test part are learned from; each is also answered by a fit
    without it, which says how good the head is even where no test image is left."""

    model: Model
    data: Data
    to: Path | None = None
    """Directory to save the model with its new head in. Default: none, only the accuracy is
    printed."""
    method: Literal["linear", "prototype", "logistic", "neighbours"] = "linear"
    """linear: least squares; prototype: the class whose mean is nearest; logistic: scikit-learn's
    regression; neighbours: the vote of the nearest training images, which is no head to save."""
    k: int = 20
    """Neighbours that vote."""
    columns: DataColumns = field(default_factory=Columns)
    on_bad_image: OnBadImage = "fail"
    precision: Precision = "auto"
    device: Device = "auto"
    json: bool = False
    """Print the metrics as one line of JSON: {name: {"value", "unit", "interval"}}."""
    hints: ModelHints = field(default_factory=Hints)


def probe(command: FitProbe) -> int:
    """Fit the head, print what it reaches, and save it."""
    from vitkit.data import is_elsewhere, open_splits
    from vitkit.evaluate.probe import known_classes
    from vitkit.evaluate.teach import remembered
    from vitkit.evaluate.unknown import fit_unknown
    from vitkit.system.machine import autocast
    from vitkit.system.ranks import on_rank_0, process_group
    from vitkit.weights import load_as
    from vitkit.weights.store import check_savable

    if command.to is not None:
        check_can_be_made(command.to)
    if command.to is not None and command.method == "neighbours":
        raise ValueError("neighbours are no head that could be saved; leave out --to")
    if command.k < 1:
        raise ValueError(f"--k is {command.k}; it is a number of neighbours, at least 1")
    with process_group(command.device) as device:
        # The model, and the images to learn from
        loaded = load_as(command.model, command.hints, quiet=not on_rank_0())
        opened = open_splits(command.data, command.columns)
        splits = opened
        if command.on_bad_image == "skip":
            splits = splits_without_broken(splits)
        train = _learned(command, splits)
        name, test = _tested(splits)
        known = known_classes(train)
        labels = tuple(train.labels[number] for number in known)
        if on_rank_0():
            for sentence in (*splits.notes, *_missing(train, test, known)):
                print(printable(sentence), file=sys.stderr)

        # Their features, as the new head will read them
        classifier = _with_new_head(loaded, labels).to(device)
        if command.to is not None:
            check_savable(classifier, command.to)
        deployed = classifier.for_inference()
        measured = {}
        precision = pick_precision(command.precision, device)
        with autocast(device, precision):
            learned = _features(deployed, train, known)
            if test is not None:
                measured[name] = _features(deployed, test, known)
        if not on_rank_0():
            return 0

    # The head, and what it reaches
    began = time.monotonic()
    if command.method == "neighbours":
        fitted = None
        metrics = _neighbours(command.k, learned, measured)
    else:
        fitted = _fit(command, learned, train, labels)
        metrics = _measured(fitted, learned, measured)
    seconds = time.monotonic() - began
    if command.json:
        print(json.dumps({m.name: m.to_json() for m in metrics}, allow_nan=False))
    else:
        print(
            f"{command.method} on {counted(len(train), 'image')} of {command.data}, {len(labels)} classes"
        )
        _print(metrics)
        print(f"fitted in {seconds:.1f} s")

    # Saved, if that is wanted
    terminal = sys.stderr if command.json else sys.stdout
    if fitted is None:
        return 0
    if command.to is None:
        print("next: the same with --to DIRECTORY, which saves the model with it", file=terminal)
        return 0
    memory = None
    if command.method == "linear" and not is_elsewhere(train):
        memory = remembered(train, learned, labels, precision)
    origin = _origin(command, fitted, metrics, opened.made_fingerprint)
    unknown = None
    if command.method == "linear":  # the one whose left-out answers are exact
        x, classes = torch.tensor(learned.x), torch.tensor(learned.y)
        unknown = fit_unknown(x, classes, fitted.left_out)
    headless = replace(classifier, origin=origin, unknown=unknown)
    saved = _save(command.to, headless, fitted, memory)
    if memory is None:
        print(f"wrote {saved}", file=terminal)
    else:
        print(f"wrote {saved}; vitkit teach {as_word(saved)} changes what it knows", file=terminal)
    print(
        f"next: vitkit predict {as_word(saved)} IMAGE..., or vitkit evaluate {as_word(saved)} DATA",
        file=terminal,
    )
    return 0


def _learned(command: FitProbe, splits: Splits) -> Source:
    """The images to learn from: all but the test part. Raises ValueError if there are none, or they
    have not one class each."""
    from vitkit.data import merge_parts

    if splits.train is None:
        raise ValueError(f"{command.data} has no images to learn from, only others to measure on")
    if splits.target_kind == "none":
        raise ValueError(
            f"{command.data} has no labels, so there is nothing to learn: put the images of each "
            "class into a folder, or name the column that holds the classes"
        )
    if splits.target_kind != "class":
        raise ValueError(
            f"a probe is for images of one class each; the targets of {command.data} are of the "
            f"kind {splits.target_kind!r}; vitkit finetune {command.model} {command.data} trains "
            "on them"
        )
    if splits.val is None or splits.test is None:
        return splits.train
    return merge_parts(splits.train, splits.val)


def _tested(splits: Splits) -> tuple[str, Source | None]:
    """The images to measure on, and the name of their part: the test part, else the val part."""
    if splits.test is not None:
        return "test", splits.test
    return "val", splits.val


def _missing(train: Source, test: Source | None, known: np.ndarray) -> list[str]:
    """Sentences about the classes that no image to learn from has."""
    missing = np.setdiff1d(np.arange(len(train.labels)), known)
    if not len(missing):
        return []
    names = ", ".join(train.labels[number] for number in missing[:5])
    if len(missing) > 5:
        names += ", ..."
    sentence = (
        f"{len(missing):,} of {len(train.labels):,} classes have no image to learn from ({names}); "
        "the head does not know them"
    )
    if test is not None and (wrong := np.isin(test.targets, missing).sum()):
        sentence += f", so {counted(wrong, 'test image')} cannot be answered right"
    return [sentence]


def _with_new_head(loaded: Classifier, labels: tuple[str, ...]) -> Classifier:
    """The model with a head of zeros for these classes."""
    from vitkit.weights import adopt

    adopted, _ = adopt(loaded, labels=labels, new_head=True)
    return adopted


def _features(classifier: Classifier, source: Source, known: np.ndarray) -> Features:
    """The features of images, and their classes among the known ones, -1 for others."""
    from vitkit.evaluate import features

    x, y = features(classifier, source)
    number = np.full(len(source.labels), -1)
    number[known] = np.arange(len(known))
    return Features(x, number[y])


def _fit(command: FitProbe, learned: Features, source: Source, labels: tuple[str, ...]) -> Probe:
    """The fitted head. Raises ValueError, with an image's name, for features that are not
    finite."""
    from vitkit.evaluate.probe import probe as fit

    broken = np.flatnonzero(~np.isfinite(learned.x).all(1))
    if len(broken):
        raise ValueError(
            f"{command.model} gives NaN or infinity for {len(broken):,} of {len(learned.x):,} "
            f"images, {source.name(broken[0])} for example, so nothing can be fitted to them"
        )
    return fit(command.method, learned.x, learned.y, len(labels))


def _measured(fitted: Probe, learned: Features, measured: dict[str, Features]) -> list[Metric]:
    """How good the left-out answers are, and those to the images that were not learned from."""
    from vitkit.evaluate.probe import quality

    answered = fitted.left_out.isfinite().all(1)
    metrics = quality("left_out", fitted.left_out[answered], learned.y[answered.numpy()])
    for name, (x, y) in measured.items():
        metrics += quality(name, fitted.logits(torch.tensor(x)), y)
    return metrics


def _neighbours(k: int, learned: Features, measured: dict[str, Features]) -> list[Metric]:
    """The accuracy of the neighbours' vote: of each image's among the others that are learned from,
    and of the other images'."""
    from vitkit.evaluate.metric import share_right
    from vitkit.evaluate.neighbours import voted

    rows, classes = torch.tensor(learned.x), torch.tensor(learned.y)
    right = int((voted(rows, classes, k) == classes).sum())
    metrics = [share_right("left_out/top1", right, len(classes))]
    for name, (x, y) in measured.items():
        answers = voted(rows, classes, k, torch.tensor(x)).numpy()
        metrics.append(share_right(f"{name}/top1", int((answers == y).sum()), len(y)))
    return metrics


def _origin(command: FitProbe, fitted: Probe, metrics: list[Metric], held_out: str | None) -> dict:
    """Where the model comes from. held_out: the fingerprint of a test part that was made, by which
    `vitkit evaluate` knows it again."""
    origin = {
        "init": command.model,
        "head": f"{command.method} probe, temperature {fitted.temperature:.3g}",
        "data": command.data,
        "metrics": {metric.name: metric.text() for metric in metrics},
        "split_seed": 0,
    }
    if held_out:
        origin["held_out"] = held_out
    return origin


def _save(folder: Path, classifier: Classifier, fitted: Probe, memory: "Memory | None") -> Path:
    """Put the head on the model and save it, with what it remembers, for `vitkit teach`."""
    from vitkit.evaluate.memory import write_memory
    from vitkit.evaluate.probe import with_probe
    from vitkit.weights import save

    probed = with_probe(classifier.to("cpu"), fitted, classifier.labels)
    saved = save(probed, folder)
    if memory is not None:
        write_memory(folder, memory, probed)
    return saved


def _print(metrics: list[Metric]) -> None:
    """Print a table of metrics, with the intervals of those that have one."""
    table = Table("metric", "value", "95 % interval")
    for metric in metrics:
        table.add_row(metric.name, metric.unit.text(metric.value), metric.interval_text())
    Console().print(table)
