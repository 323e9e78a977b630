"""Evaluation of a frozen model on one task, without fine-tuning: its features by closed-form probes
on a task with training images, or its own predictions by the data set's official protocol on a task
without any.

Features are computed once and cached: a task takes seconds, and less the next time.
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

MEASURED = ("top1", "top5", "calibration_error")  # metrics on a named data set


def frozen_cells(
    model: str, tasks: dict[Task, TaskImages], hints: Hints, precision: Precision
) -> list[Cell]:
    """One measurement of the model per task. Raises VitkitError for a model that cannot be read."""
    # The weights' digest distinguishes models with the same name
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
    """Linear probe and nearest neighbours fitted to all images but the test part, and few-shot
    accuracy with samples of the training part. Equal values make equal measurements."""

    model: str
    """The model."""
    weights: str
    """Digest of the model's weights."""
    data: str
    """The images."""
    digest: str
    """Digest for detecting changed images."""
    columns: Columns = field(default_factory=Columns)
    """Columns that hold the images and the labels."""
    hints: Hints = field(default_factory=Hints)
    """Overrides for what the model's file does not contain."""
    shots: tuple[int, ...] = (5, 10)
    """Numbers of images per class for the few-shot accuracy."""
    seeds: int = 3
    """Number of random samples for the few-shot accuracy."""
    k: int = 20
    """Number of neighbours that vote."""
    precision: Precision = "float32"
    """Precision of the matrix products in the backbone."""

    def measure(self, device: str) -> list[Metric]:
        """The accuracies `linear`, `left_out` (leave-one-out accuracy of the linear probe on its
        training images), `5-shot`, `10-shot` and `neighbours`. Raises VitkitError for images
        without usable training classes, and for features that are not finite."""
        # The training images; training and validation images; and the test images
        sources = parts_at(self.data, self.columns).sources
        train = sources["train"]
        learned = train
        if "val" in sources:
            learned = merge_parts(train, sources["val"])
        test = sources["test"]
        known = known_classes(learned)

        # Features are computed once; the training images come first
        with process_group(device) as own_device:
            loaded = load_as(self.model, self.hints, quiet=True)
            classifier = loaded.to(own_device).for_inference()
            with autocast(own_device, self.precision):
                x, y = compute_features(classifier, learned)
                x_test, y_test = compute_features(classifier, test)

        # The linear probe, which has no output for classes without an image
        number = np.full(len(learned.labels), -1)
        number[known] = np.arange(len(known))
        fitted = fit_probe("linear", x, number[y], len(known))
        predicted = known[fitted.logits(torch.tensor(x_test)).argmax(1).numpy()]
        left_out = known[fitted.left_out.argmax(1).numpy()]
        metrics = [_accuracy("linear", predicted, y_test), _accuracy("left_out", left_out, y)]

        # Few-shot accuracy, from samples of the training images
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
    """A model's predictions on a data set, evaluated by its official protocol. Equal values make equal
    measurements."""

    model: str
    """The model."""
    weights: str
    """Digest of the model's weights."""
    data: str
    """Path of the images."""
    digest: str
    """Digest for detecting changed images."""
    named: SetName
    """The data set."""
    corruption: Corruption | None = None
    """The corruption, for ImageNet-C; None for other data sets."""
    real: str = ""
    """Path of ReaL's file, if its labels are used; else ""."""
    hints: Hints = field(default_factory=Hints)
    """Overrides for what the model's file does not contain."""
    precision: Precision = "float32"
    """Precision of the matrix products."""

    def measure(self, device: str) -> list[Metric]:
        """top1, top5 and calibration_error; for ReaL top1; for a corruption top1, averaged over its
        severities, and CE, the error relative to AlexNet's. Raises VitkitError for a model that
        does not have the classes."""
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
                    assert corrupted is not None  # _published has found it
                    found = robustness_on_files([corrupted], partial(_predict, ready))
                    return [replace(found.mean, name="top1"), replace(found.errors[0], name="CE")]
                named = open_named(self.named, self.data)
                given = _predict(ready, named, "evaluating")
                if self.real:
                    top1, _ = real_accuracy(given, named.source, read_real(self.real))
                    return [replace(top1, name="top1")]
                by_name = {metric.name: metric for metric in classification(given)}
                return [by_name[name] for name in MEASURED if name in by_name]


def _predict(classifier: Classifier, named: Named, text: str) -> Answers:
    """The model's predictions for a data set, by its protocol."""
    choice = named.choice(classifier.labels)
    part = Part(named.source, batches_of(classifier, named.source, text))
    return answers(classifier, part, choice=choice)


def _accuracy(name: str, predicted: np.ndarray, classes: np.ndarray) -> Metric:
    """The accuracy of predicted classes, (N,), for true classes, (N,)."""
    return share_right(name, predicted == classes)
