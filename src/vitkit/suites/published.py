"""A task that nothing is learned from: a data set of ImageNet's classes, measured as its authors do."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitkit.data import fingerprint
from vitkit.evaluation import (
    Answers,
    Corruption,
    Metric,
    Named,
    Part,
    SetName,
    answers,
    batches_of,
    check_classes,
    check_names,
    classification,
    open_corruption,
    open_named,
    read_real,
    real_accuracy,
    robustness_on_files,
    uncropped,
)
from vitkit.suites.task import Images, Task
from vitkit.system.machine import Precision, autocast
from vitkit.system.processes.ranks import process_group
from vitkit.system.storage.files import cache_dir
from vitkit.weights import Classifier, Hints, load_as

REAL = "https://github.com/google-research/reassessed-imagenet"
MEASURED = ("top1", "top5", "calibration_error")


@dataclass(frozen=True)
class AsPublished:
    """A model's answers to a data set, judged as its authors do. Equal values measure the same."""

    model: str
    """The model."""
    weights: str
    """A digest of its weights."""
    data: str
    """Where the images are."""
    digest: str
    """By which changed images are noticed."""
    named: SetName
    """What they are."""
    corruption: Corruption | None = None
    """Of ImageNet-C's files, the corruption."""
    real: str = ""
    """ReaL's file, if its labels are the ones that count."""
    hints: Hints = field(default_factory=Hints)
    """What the model's file does not say."""
    precision: Precision = "float32"
    """Of the matrix products."""

    def measure(self, device: str) -> list[Metric]:
        """top1, top5 and calibration_error; of ReaL top1; of a corruption top1, the mean over its
        severities, and CE, the error in proportion to AlexNet's. Raises ValueError for a model that
        does not know the classes."""
        with process_group(device) as own_device:
            loaded = load_as(self.model, self.hints, quiet=True)
            check_classes(loaded)
            if self.corruption is not None:
                loaded = replace(loaded, preprocessing=uncropped(loaded.preprocessing))
            ready = loaded.to(own_device).for_inference()
            with autocast(own_device, self.precision):
                if self.corruption is not None:
                    return self._corrupted(ready)
                return self._measured(ready)

    def _measured(self, classifier: Classifier) -> list[Metric]:
        named = open_named(self.named, self.data)
        given = _ask(classifier, named, "evaluating")
        if self.real:
            top1, _ = real_accuracy(given, named.source, read_real(self.real))
            return [replace(top1, name="top1")]
        by_name = {metric.name: metric for metric in classification(given)}
        return [by_name[name] for name in MEASURED if name in by_name]

    def _corrupted(self, classifier: Classifier) -> list[Metric]:
        corrupted = open_corruption(self.data, self.corruption)
        found = robustness_on_files([corrupted], lambda named, text: _ask(classifier, named, text))
        return [replace(found.mean, name="top1"), replace(found.errors[0], name="CE")]


def _ask(classifier: Classifier, named: Named, text: str) -> Answers:
    """The answers of a model to a data set, as its protocol has it."""
    choice = named.choice(classifier.labels)
    part = Part(named.source, batches_of(classifier, named.source, text))
    return answers(classifier, part, choice=choice)


def find_published(task: Task, folder: str) -> Images | None:
    """The images of such a task below a folder, under one of the names that it goes by; None if they
    are not there.

    Raises ValueError for images that are not of it, and if ReaL's file is missing.
    """
    where = next((str(path) for path in _places(task, folder) if path.exists()), None)
    if where is None:
        return None
    if task.corruption:
        corrupted = open_corruption(where, task.corruption)
        if corrupted is None:
            return None
        sources = [named.source for named in corrupted.severities]
        digests = [fingerprint(source) for source in sources]
        return Images(where, 0, corrupted.images, 0, _digest(digests))
    source = open_named(task.named, where).source
    digests = [fingerprint(source)]
    real = ""
    if task.asks_real:
        real = _real_file(folder, where)
        check_names(source)
        digests.append(hashlib.sha256(Path(real).read_bytes()).hexdigest())
    return Images(where, 0, len(source), 0, _digest(digests), real=real)


def names_of(task: Task) -> str:
    """What the folder of a task may be called, for a sentence."""
    return " or ".join(task.folders)


def _places(task: Task, folder: str) -> list[Path]:
    return [Path(folder) / name for name in task.folders]


def _real_file(folder: str, where: str) -> str:
    """ReaL's file: in the suite's folder, in that of the images or above it, or downloaded before.
    Raises ValueError if it is nowhere."""
    places = [Path(folder), Path(where), Path(where).parent, cache_dir() / "imagenet"]
    for place in places:
        if (place / "real.json").is_file():
            return str(place / "real.json")
    raise ValueError(
        f"the images are there, and {Path(folder) / 'real.json'} is not; get it from {REAL}, or let "
        f"vitkit evaluate MODEL {where} --real download keep it"
    )


def _digest(digests: Sequence[str]) -> str:
    """One digest of several."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
