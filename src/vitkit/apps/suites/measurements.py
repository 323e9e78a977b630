"""What a model is worth as it is, on one task and without training: what its features are worth to
closed forms on one that is learned, and its own answers, judged as the authors of the data set do, on
one that is not.

Features are computed once, and kept in the cache: a task takes seconds, and the next time less.
"""

import hashlib
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from vitkit.apps.suites.images import TaskImages
from vitkit.apps.suites.task import Task
from vitkit.data import Columns, merge_parts, parts_at
from vitkit.evaluation import (
    SHARE,
    Answers,
    Metric,
    Part,
    answers,
    batches_of,
    classification,
    compute_features,
    draw,
    fit_probe,
    interval,
    open_corruption,
    open_named,
    predictions,
    read_real,
    real_accuracy,
    robustness_on_files,
    share_right,
    shot_notes,
    uncropped,
    voted,
)
from vitkit.evaluation.benchmarks.corruptions import Corruption
from vitkit.evaluation.benchmarks.named import Named, SetName
from vitkit.evaluation.metrics.answers import check_classes
from vitkit.evaluation.probes.fewshot import FIXED
from vitkit.evaluation.probes.probing import known_classes
from vitkit.system.console.messages import say
from vitkit.system.console.text import printable
from vitkit.system.machine import Precision, autocast
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.training import Cell
from vitkit.weights import Classifier, Hints, add_weights, check_answers, load_as

MEASURED = ("top1", "top5", "calibration_error")  # of answers to a named data set


def frozen_cells(
    model: str, tasks: dict[Task, TaskImages], hints: Hints, precision: Precision
) -> list[Cell]:
    """A measurement of the model on each task. Raises VitkitError for a model that cannot be read."""
    # Another model under the same name is noticed by its weights
    digest = hashlib.sha256()
    add_weights(digest, load_as(model, hints, quiet=not on_rank_0()).model.state_dict())
    weights = digest.hexdigest()
    cells = []
    for task, images in tasks.items():
        measurement: Frozen | AsPublished
        if task.named is None:
            measurement = Frozen(
                model,
                weights,
                images.where,
                images.digest,
                task.columns,
                hints=hints,
                precision=precision,
            )
        else:
            measurement = AsPublished(
                model,
                weights,
                images.where,
                images.digest,
                task.named,
                task.corruption,
                real=images.real,
                hints=hints,
                precision=precision,
            )
        cells.append(Cell(task.name, measurement, {"task": task.name}, task.heading))
    return cells


@dataclass(frozen=True)
class Frozen:
    """Linear probe and neighbours, which know all images but the test part, and few-shot accuracy,
    which draws from the training part. Equal values measure the same."""

    model: str
    """The model."""
    weights: str
    """A digest of its weights."""
    data: str
    """The images."""
    digest: str
    """By which changed images are noticed."""
    columns: Columns = field(default_factory=Columns)
    """Which columns hold the images and the labels."""
    hints: Hints = field(default_factory=Hints)
    """What the model's file does not say."""
    shots: tuple[int, ...] = (5, 10)
    """Images of each class for the few-shot accuracy."""
    seeds: int = 3
    """How often these are drawn."""
    k: int = 20
    """Neighbours that vote."""
    precision: Precision = "float32"
    """Of the matrix products below the head."""

    def measure(self, device: str) -> list[Metric]:
        """The accuracy of each: `linear`, and `left_out`, which is the probe's on the images that it
        learns from, each answered by a fit without it; `5-shot`, `10-shot`; `neighbours`. Raises
        VitkitError for images that nothing can be learned from, and for features that are not
        finite."""
        # The training images; the same and those of the validation part; and the test images
        sources = parts_at(self.data, self.columns).sources
        train = sources["train"]
        learned = train
        if "val" in sources:
            learned = merge_parts(train, sources["val"])
        test = sources["test"]
        known = known_classes(learned)

        # The features, once; the training images are the first of those learned from
        with process_group(device) as own_device:
            loaded = load_as(self.model, self.hints, quiet=True)
            classifier = loaded.to(own_device).for_inference()
            with autocast(own_device, self.precision):
                x, y = compute_features(classifier, learned)
                x_test, y_test = compute_features(classifier, test)

        # The linear probe, which does not know classes without an image
        number = np.full(len(learned.labels), -1)
        number[known] = np.arange(len(known))
        fitted = fit_probe("linear", x, number[y], len(known))
        predicted = known[fitted.logits(torch.tensor(x_test)).argmax(1).numpy()]
        left_out = known[fitted.left_out.argmax(1).numpy()]
        metrics = [_accuracy("linear", predicted, y_test), _accuracy("left_out", left_out, y)]

        # A few training images of each class
        for shots in self.shots:
            right = []
            for seed in range(self.seeds):
                rows = draw(train.target_array, shots, seed)
                answers = predictions(x[rows], y[rows], x_test, len(test.labels), (FIXED,))
                right.append(answers[0] == y_test)
            every = np.stack(right)
            metrics.append(Metric(f"{shots}-shot", float(every.mean()), SHARE, interval(every)))
        if on_rank_0():
            for sentence in shot_notes(train, test, max(self.shots)):
                say(printable(f"{self.data}: {sentence}"))

        near = voted(torch.tensor(x), torch.tensor(y), self.k, torch.tensor(x_test)).numpy()
        return [*metrics, _accuracy("neighbours", near, y_test)]


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
        severities, and CE, the error in proportion to AlexNet's. Raises VitkitError for a model that
        does not know the classes."""
        with process_group(device) as own_device:
            loaded = load_as(self.model, self.hints, quiet=True)
            check_answers(loaded)
            check_classes(loaded)
            if self.corruption is not None:
                loaded = replace(loaded, preprocessing=uncropped(loaded.preprocessing))
            ready = loaded.to(own_device).for_inference()
            with autocast(own_device, self.precision):
                if self.corruption is not None:
                    corrupted = open_corruption(self.data, self.corruption)
                    assert corrupted is not None  # as _published has found it
                    found = robustness_on_files([corrupted], partial(_ask, ready))
                    return [replace(found.mean, name="top1"), replace(found.errors[0], name="CE")]
                named = open_named(self.named, self.data)
                given = _ask(ready, named, "evaluating")
                if self.real:
                    top1, _ = real_accuracy(given, named.source, read_real(self.real))
                    return [replace(top1, name="top1")]
                by_name = {metric.name: metric for metric in classification(given)}
                return [by_name[name] for name in MEASURED if name in by_name]


def _ask(classifier: Classifier, named: Named, text: str) -> Answers:
    """The answers of a model to a data set, as its protocol has it."""
    choice = named.choice(classifier.labels)
    part = Part(named.source, batches_of(classifier, named.source, text))
    return answers(classifier, part, choice=choice)


def _accuracy(name: str, predicted: np.ndarray, classes: np.ndarray) -> Metric:
    """The share of answers that are right, of classes (N,) each."""
    return share_right(name, predicted == classes)
