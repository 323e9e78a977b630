"""`vitkit probe`: a new head on a model's features, in closed form."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from vitkit.commands.probe_saving import Fitted, save_probe
from vitkit.data import Columns, Source, Splits
from vitkit.evaluation import Features, Metric
from vitkit.system.console.text import as_word, counted, printable
from vitkit.system.storage.files import check_can_be_made
from vitkit.verbs import (
    As,
    Data,
    DataColumns,
    Device,
    Model,
    ModelHints,
    OnBadImage,
    Precision,
    pick_precision,
    splits_to_learn_from,
)
from vitkit.weights import Classifier, Hints

if TYPE_CHECKING:
    from vitkit.evaluation import Probing

HAVE = {"classes": "have several", "number": "have a number"}  # kinds of targets, in a sentence


@dataclass
class FitProbe:
    """Fit a linear head to the features of your images, in seconds and without training, and save
    the model with it. All images but the test part are learned from; each is also answered by a fit
    without it, which says how good the head is even where no test image is left. Images may have one
    class each, several, or a number."""

    model: Model
    data: Data
    to: Path | None = None
    """Directory to save the model with its new head in. Default: none, only the accuracy is
    printed."""
    method: Literal["linear", "prototype", "logistic", "neighbours"] = "linear"
    """linear: least squares, for several classes and for numbers too; prototype: the class whose mean
    is nearest; logistic: scikit-learn's regression; neighbours: the vote of the nearest training
    images, which is no head to save."""
    k: int = 20
    """Neighbours that vote."""
    named: As = None
    columns: DataColumns = field(default_factory=Columns)
    on_bad_image: OnBadImage = "fail"
    precision: Precision = "auto"
    device: Device = "auto"
    json: bool = False
    """Print the metrics as one line of JSON: {name: {"value", "unit", "interval"}}."""
    hints: ModelHints = field(default_factory=Hints)


def probe(command: FitProbe) -> int:
    """Fit the head, print what it reaches, and save it."""
    from vitkit.data import fingerprint
    from vitkit.evaluation import Probing
    from vitkit.system.machine import autocast
    from vitkit.system.processes.ranks import on_rank_0, process_group
    from vitkit.weights import check_savable, load_as

    _check(command)
    with process_group(command.device) as device:
        # The model, and the images to learn from
        loaded = load_as(command.model, command.hints, quiet=not on_rank_0())
        splits, held_out = splits_to_learn_from(
            command.data, command.columns, command.named, command.on_bad_image
        )
        parts = _to_learn(command, splits)
        train = _merged(parts)
        name, test = _tested(splits)
        probing = Probing.of(train)
        if on_rank_0():
            for sentence in (*splits.notes, *_missing(probing, train, test)):
                print(printable(sentence), file=sys.stderr)

        # Their features, as the new head will read them
        classifier = _with_new_head(loaded, probing).to(device)
        if command.to is not None:
            check_savable(classifier, command.to)
        deployed = classifier.for_inference()
        measured = {}
        precision = pick_precision(command.precision, device)
        with autocast(device, precision):
            learned = _features(deployed, probing, train)
            if test is not None:
                measured[name] = _features(deployed, probing, test)
        if not on_rank_0():
            return 0

    # The head, and what it reaches
    began = time.monotonic()
    if command.method == "neighbours":
        fitted = None
        metrics = _neighbours(command.k, learned, measured)
    else:
        _refuse_broken(command, learned, train)
        fitted = probing.fit(command.method, learned)
        metrics = probing.qualities(fitted, learned, measured)
    seconds = time.monotonic() - began
    if command.json:
        print(json.dumps({m.name: m.to_json() for m in metrics}, allow_nan=False))
    else:
        print(_title(command, probing, len(train)))
        _print(metrics)
        print(f"fitted in {seconds:.1f} s")

    # Saved, if that is wanted
    terminal = sys.stderr if command.json else sys.stdout
    if fitted is None:
        return 0
    if command.to is None:
        print("next: the same with --to DIRECTORY, which saves the model with it", file=terminal)
        return 0
    made = Fitted(
        probing=probing,
        probe=fitted,
        source=train,
        learned=learned,
        precision=precision,
        metrics=metrics,
        held_out=held_out,
        parts=tuple(fingerprint(part) for part in parts),
    )
    print(save_probe(command, classifier, made), file=terminal)
    word = as_word(command.to)
    print(f"next: vitkit predict {word} IMAGE..., or vitkit evaluate {word} DATA", file=terminal)
    return 0


def _check(command: FitProbe) -> None:
    """Raises ValueError for settings that do not go together, before anything is computed."""
    if command.to is not None:
        check_can_be_made(command.to)
    if command.to is not None and command.method == "neighbours":
        raise ValueError("neighbours are no head that could be saved; leave out --to")
    if command.k < 1:
        raise ValueError(f"--k is {command.k}; it is a number of neighbours, at least 1")


def _to_learn(command: FitProbe, splits: Splits) -> list[Source]:
    """The parts to learn from: all but the one to measure on. Raises ValueError if there are none, or
    they have no labels, or not those that the method is for."""
    if splits.train is None:
        raise ValueError(f"{command.data} has no images to learn from, only others to measure on")
    if splits.target_kind == "none":
        raise ValueError(
            f"{command.data} has no labels, so there is nothing to learn: put the images of each "
            "class into a folder, or name the column that holds the classes"
        )
    if splits.target_kind != "class" and command.method != "linear":
        raise ValueError(
            f"--method {command.method} is for images of one class each, and those of {command.data} "
            f"{HAVE[splits.target_kind]}; --method linear is for them too"
        )
    if splits.val is None or splits.test is None:
        return [splits.train]
    return [splits.train, splits.val]


def _merged(parts: Sequence[Source]) -> Source:
    """The images of one part or two."""
    from vitkit.data import merge_parts

    if len(parts) == 1:
        return parts[0]
    return merge_parts(*parts)


def _tested(splits: Splits) -> tuple[str, Source | None]:
    """The images to measure on, and the name of their part: the test part, else the val part."""
    if splits.test is not None:
        return "test", splits.test
    return "val", splits.val


def _missing(probing: "Probing", train: Source, test: Source | None) -> list[str]:
    """Sentences about the classes that no image to learn from has, and those that all have."""
    missing = np.setdiff1d(np.arange(len(train.labels)), probing.known)
    sentences = []
    if probing.kind == "classes":
        always = np.flatnonzero(train.targets.multi_hot(len(train.labels)).all(0))
        if len(always):
            sentences.append(
                f"every image to learn from has {_some(train.labels, always)}: the head says so of all "
                "images"
            )
    if not len(missing):
        return sentences
    names = _some(train.labels, missing)
    sentence = (
        f"{len(missing):,} of {len(train.labels):,} classes have no image to learn from ({names}); "
        "the head does not know them"
    )
    if test is not None and (wrong := probing.unknown_in(test)):
        sentence += f", so {counted(wrong, 'test image')} cannot be answered right"
    return [*sentences, sentence]


def _some(labels: Sequence[str], numbers: np.ndarray) -> str:
    """The names of the first five of these classes, and whether there are more."""
    names = ", ".join(labels[number] for number in numbers[:5])
    if len(numbers) > 5:
        names += ", ..."
    return names


def _with_new_head(loaded: Classifier, probing: "Probing") -> Classifier:
    """The model with a head of zeros for these classes, or for a number."""
    from vitkit.weights import adopt

    adopted, _ = adopt(loaded, labels=probing.labels, new_head=True)
    return adopted


def _features(classifier: Classifier, probing: "Probing", source: Source) -> Features:
    """The features of images, and their targets as the head has its outputs."""
    from vitkit.evaluation import features

    return probing.targets(source, features(classifier, source))


def _refuse_broken(command: FitProbe, learned: Features, source: Source) -> None:
    """Raises ValueError, with an image's name, for features that are not finite."""
    broken = np.flatnonzero(~np.isfinite(learned.x).all(1))
    if len(broken):
        raise ValueError(
            f"{command.model} gives NaN or infinity for {len(broken):,} of {len(learned.x):,} "
            f"images, {source.name(broken[0])} for example, so nothing can be fitted to them"
        )


def _neighbours(k: int, learned: Features, measured: dict[str, Features]) -> list[Metric]:
    """The accuracy of the neighbours' vote: of each image's among the others that are learned from,
    and of the other images'."""
    from vitkit.evaluation import share_right, voted

    rows, classes = torch.tensor(learned.x), torch.tensor(learned.y)
    right = int((voted(rows, classes, k) == classes).sum())
    metrics = [share_right("left_out/top1", right, len(classes))]
    for name, (x, y) in measured.items():
        answers = voted(rows, classes, k, torch.tensor(x)).numpy()
        metrics.append(share_right(f"{name}/top1", int((answers == y).sum()), len(y)))
    return metrics


def _title(command: FitProbe, probing: "Probing", images: int) -> str:
    """What was fitted to what."""
    what = f"{len(probing.labels)} classes"
    if probing.kind == "classes":
        what += ", several an image"
    if probing.kind == "number":
        what = "a number each"
    return f"{command.method} on {counted(images, 'image')} of {command.data}, {what}"


def _print(metrics: list[Metric]) -> None:
    """Print a table of metrics, with the intervals of those that have one."""
    table = Table("metric", "value", "95 % interval")
    for metric in metrics:
        table.add_row(metric.name, metric.unit.text(metric.value), metric.interval_text())
    Console().print(table)
