"""`vitkit.probe`: fits a new head to a model's features in closed form."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from json import dumps
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
import torch
from rich.table import Table

from vitkit.data import Columns, Lists, Source, Splits, fingerprint, is_elsewhere, merge_parts
from vitkit.evaluation.benchmarks.named import SetName
from vitkit.evaluation.functions.outcome import metrics_table, rows_of_metrics
from vitkit.evaluation.metrics.metric import Metric, share_right
from vitkit.evaluation.probes.features import Features, compute_features
from vitkit.evaluation.probes.neighbours import voted
from vitkit.evaluation.probes.probe import Probe, with_probe
from vitkit.evaluation.probes.probing import MeasuredOn, Probing
from vitkit.evaluation.probes.teaching import Memory, remembered, rounded, write_memory
from vitkit.evaluation.probes.unknown import fit_unknown, last_token
from vitkit.evaluation.sources import splits_to_learn_from
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.functions.arguments import name_of, pick_precision
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, IMAGES, step
from vitkit.system.functions.types import DataLike, DeviceLike, PathLike
from vitkit.system.machine import Precision, PrecisionChoice, autocast
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.storage.files import check_can_be_made
from vitkit.weights import (
    Classifier,
    MadeModel,
    ModelLike,
    Overrides,
    adopt,
    check_savable,
    classifier_of,
    hints_of,
    save,
)

HAVE = {"classes": "have several", "number": "have a number"}  # kinds of targets, in messages


@dataclass(frozen=True, eq=False, repr=False)
class Probed(Rows, MadeModel):
    """A model with a new head that was fitted to its features."""

    method: str
    """The method by which the head was fitted."""
    classifier: Classifier | None
    """The model with its new head; None for neighbours, which have no head."""
    metrics: tuple[Metric, ...]
    """Metrics on images that the head did not learn from; under torchrun empty on all ranks but 0."""
    title: str
    """A title with the method, the images and the classes."""
    seconds: float
    """Duration of the fit in seconds."""
    path: Path | None
    """The directory that the model was saved in; None if it was not saved."""
    remembers: bool
    """Whether `vitkit teach` can add images to the model later."""
    json: bool = False
    """Whether the result is printed as JSON."""

    @property
    def made(self) -> str | Classifier:
        """The directory of the saved model, else the classifier. Raises VitkitError for neighbours, which
        have no head."""
        if self.path is not None:
            return str(self.path)
        if self.classifier is None:
            raise BadSettings(f"{self.method} makes no model; method='linear' does")
        return self.classifier

    def __getitem__(self, name: str) -> float:
        """The value of a metric by its name, such as "left_out/top1". Raises KeyError."""
        return {metric.name: metric.value for metric in self.metrics}[name]

    def rows(self) -> list[dict]:
        """A row for each metric."""
        return rows_of_metrics(self.metrics)

    def to_json(self) -> dict:
        """{name: {"value", "unit", "interval"}}"""
        return {metric.name: metric.to_json() for metric in self.metrics}

    def shown(self) -> Iterator[str | Table]:
        """A table of the metrics, and what was written; or JSON."""
        if self.json:
            yield dumps(self.to_json(), allow_nan=False)
            return
        yield self.title
        yield metrics_table(self.metrics)
        yield f"fitted in {self.seconds:.1f} s"
        yield from self.written()

    def written(self) -> Iterator[str]:
        """A sentence on the model that was written, and the next command."""
        if self.classifier is None:
            return
        if self.path is None:
            yield "next: the same with `to=DIRECTORY`, which saves the model with it"
            return
        teach = ""
        if self.remembers:
            teach = f"; {step('teach', self.path)} changes what it knows"
        yield f"wrote {self.path}{teach}"
        yield f"next: {step('predict', self.path, IMAGES)}, or {step('evaluate', self.path, DATA)}"


Method = Literal["linear", "prototype", "logistic", "neighbours"]


@public
def probe(
    model: ModelLike,
    data: DataLike,
    *,
    to: PathLike | None = None,
    method: Method = "linear",
    k: int = 20,
    named: SetName | None = None,
    columns: Columns = Columns(),
    groups: Literal["auto", "none"] | str = "auto",
    on_bad_image: Literal["fail", "skip"] = "fail",
    precision: PrecisionChoice = "auto",
    device: DeviceLike = "auto",
    json: bool = False,
    **overrides: Unpack[Overrides],
) -> Probed:
    """Fit a linear head to the features of your images, in seconds and without training, and save
    the model with it. The head learns from all images except the test part. Each of these is also
    classified by a fit without it, which shows how good the head is even if there is no test part.
    Images may have one class each, several classes, or a number.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        data: A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://),
            hf:NAME on the Hugging Face hub, file.py:function, or digits.
        to: Directory to save the model with its new head in. Default: none, only the accuracy is
            printed.
        method: linear: least squares, also for several classes and for numbers; prototype: the class with
            the nearest mean; logistic: scikit-learn's logistic regression; neighbours: a vote of the
            nearest training images, which gives no head to save.
        k: Neighbours that vote.
        named: Name of DATA, if it is ImageNet or one of its relatives, which determines the classes of
            its folders (docs/evaluation.md).
        columns: Columns of a table that hold the image and its label. Default: found by their usual
            names.
        groups: Which images belong together, and stay on the same side of every split that vitkit
            makes. auto: images with the same value in `data.columns.group`; without this column,
            photographs of one burst, which vitkit detects. none: no images. Otherwise the name of a
            column.
        on_bad_image: What to do with a broken image: stop, or skip it and print its name.
        precision: Arithmetic of the matrix products. auto is bfloat16 if the CPU or GPU has
            instructions for it.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        json: Print the metrics as one line of JSON: {name: {"value", "unit", "interval"}}.
        **overrides: What the caller says about the model, and where messages go: `Overrides`.

    Raises:
        BadSettings: If settings do not go together, or the model's features are not finite.
        BadData: If the images have no labels.
    """
    # Refuse impossible settings before anything is computed
    hints = hints_of(overrides)
    if to is not None:
        check_can_be_made(to)
    if to is not None and method == "neighbours":
        raise BadSettings("neighbours give no head that could be saved; leave out `to`")
    if k < 1:
        raise BadSettings(f"`k` is {k}; it is a number of neighbours, at least 1")

    with process_group(device) as opened:
        # The model, and the images to learn from
        loaded = classifier_of(model, hints, quiet=not on_rank_0())
        splits, held_out = splits_to_learn_from(data, columns, named, on_bad_image, groups)
        parts = _to_learn(splits, data, method)
        train = reduce(merge_parts, parts)
        name = "val" if splits.test is None else "test"
        test = getattr(splits, name)
        probing = Probing.of(train)
        for sentence in (*splits.notes, *_missing(probing, train, test)):
            say(sentence)

        # The features that the new head will read
        adopted, _ = adopt(loaded, labels=probing.labels, new_head=True)
        classifier = adopted.to(opened)
        if to is not None:
            check_savable(classifier, to)
        deployed = classifier.for_inference()
        measured = {}
        arithmetic = pick_precision(precision, opened)
        with autocast(opened, arithmetic):
            learned = _features(deployed, probing, train)
            if test is not None:
                found = _features(deployed, probing, test)
                measured[name] = MeasuredOn(found, test.groups)
        title = _title(method, data, probing, len(train))
        if not on_rank_0():
            return Probed(method, None, (), title, 0.0, None, False, json)

    # Fit the head, and measure it
    began = time.monotonic()
    if method == "neighbours":
        metrics = _neighbours(k, learned, measured, train.groups)
        seconds = time.monotonic() - began
        return Probed(method, None, tuple(metrics), title, seconds, None, False, json)
    _refuse_broken(name_of(model), learned, train)
    fitted = probing.fit(method, learned, train.groups)
    metrics = probing.qualities(fitted, learned, measured, train.groups)
    seconds = time.monotonic() - began
    for sentence in probing.chance(fitted, measured, train.groups):
        say(sentence)

    # The model with the head, saved if `to` is given
    made = Fitted(
        model=name_of(model),
        data=data,
        method=method,
        groups=columns.group or groups,
        probing=probing,
        probe=fitted,
        source=train,
        learned=learned,
        precision=arithmetic,
        metrics=metrics,
        held_out=held_out,
        parts=tuple(fingerprint(part) for part in parts),
    )
    probed, memory = with_fitted(classifier, made)
    if to is not None:
        save(probed, to)
        if memory is not None:
            write_memory(to, memory, probed)
    outcome = Probed(method, probed, tuple(metrics), title, seconds, to, memory is not None, json)
    if json:  # standard output is for the JSON alone
        for sentence in outcome.written():
            say(sentence)
    return outcome


def _to_learn(splits: Splits, data: str, method: Method) -> list[Source]:
    """The parts to learn from: all but the one to measure on. Raises BadData if there are none, or they
    have no labels; BadSettings if the method cannot learn their kind of targets."""
    if splits.train is None:
        raise BadData(f"{data} has no images to learn from, only others to measure on")
    if splits.target_kind == "none":
        raise BadData(
            f"{data} has no labels, so there is nothing to learn: put the images of each "
            "class into a folder, or name the column that holds the classes"
        )
    if splits.target_kind != "class" and method != "linear":
        raise BadSettings(
            f"`method={method!r}` is for images of one class each, and those of {data} "
            f"{HAVE[splits.target_kind]}; `method='linear'` is for them too"
        )
    if splits.val is None or splits.test is None:
        return [splits.train]
    return [splits.train, splits.val]


def _missing(probing: Probing, train: Source, test: Source | None) -> list[str]:
    """Sentences about the classes that none, or all, of the images to learn from have."""
    missing = np.setdiff1d(np.arange(len(train.labels)), probing.known)
    sentences = []
    if isinstance(train.targets, Lists):  # several classes an image
        always = np.flatnonzero(train.targets.multi_hot(len(train.labels)).all(0))
        if len(always):
            sentences.append(
                f"every image to learn from has {some([train.labels[k] for k in always])}: the head says so of all "
                "images"
            )
    if not len(missing):
        return sentences
    names = some([train.labels[k] for k in missing])
    sentence = (
        f"{len(missing):,} of {len(train.labels):,} classes have no image to learn from ({names}); "
        "the head does not know them"
    )
    if test is not None and (wrong := probing.unknown_in(test)):
        sentence += f", so {counted(wrong, 'test image')} cannot be answered right"
    return [*sentences, sentence]


def _features(classifier: Classifier, probing: Probing, source: Source) -> Features:
    """The features of images, and their targets in the order of the head's outputs."""
    found = probing.targets(source, compute_features(classifier, source))
    if last_token(classifier) is None:
        return found
    return found._replace(x=rounded(found.x))


def _refuse_broken(model: str, learned: Features, source: Source) -> None:
    """Raises VitkitError, with an image's name, for features that are not finite."""
    broken = np.flatnonzero(~np.isfinite(learned.x).all(1))
    if len(broken):
        raise BadSettings(
            f"{model} gives NaN or infinity for {len(broken):,} of {len(learned.x):,} "
            f"images, {source.name(broken[0])} for example, so nothing can be fitted to them"
        )


def _neighbours(
    k: int, learned: Features, measured: dict[str, MeasuredOn], groups: np.ndarray | None
) -> list[Metric]:
    """The accuracy of the nearest neighbours' vote: leave-one-out on the images to learn from, and on the
    parts to measure on."""
    rows, classes = torch.tensor(learned.x), torch.tensor(learned.y)
    number = None
    if groups is not None:
        number = torch.tensor(groups)
    right = (voted(rows, classes, k, groups=number) == classes).numpy()
    metrics = [share_right("left_out/top1", right, groups)]
    for name, part in measured.items():
        answers = voted(rows, classes, k, torch.tensor(part.found.x)).numpy()
        metrics.append(share_right(f"{name}/top1", answers == part.found.y, part.groups))
    return metrics


def _title(method: Method, data: str, probing: Probing, images: int) -> str:
    """A title such as "linear on 200 images of photos, 10 classes"."""
    what = f"{len(probing.labels)} classes"
    if probing.kind == "classes":
        what += ", several an image"
    if probing.kind == "number":
        what = "a number each"
    return f"{method} on {counted(images, 'image')} of {data}, {what}"


@dataclass(frozen=True, eq=False)
class Fitted:
    """A probe, and the data to which it was fitted."""

    model: str
    """The name of the model whose features the probe reads."""
    data: str
    """The data set, as the user gave it."""
    method: Method
    groups: str
    """How images are grouped: auto, none, or the name of a column."""
    probing: Probing
    probe: Probe
    source: Source
    """The images to learn from."""
    learned: Features
    """Features and targets of `source`."""
    precision: Precision
    """The arithmetic in which the features were computed."""
    metrics: list[Metric]
    """The probe's metrics."""
    held_out: str | None
    """The fingerprint of a test part that was split off, by which `vitkit evaluate` recognises it."""
    parts: tuple[str, ...]
    """Fingerprints of the parts that the probe learned from, by which `vitkit evaluate` recognises them."""


def with_fitted(classifier: Classifier, fitted: Fitted) -> tuple[Classifier, Memory | None]:
    """A model with the fitted head. A linear head for images of one class each comes with a memory of its
    training images, for `vitkit teach`, and with rejection thresholds for out-of-distribution images."""
    # Only the linear method's cross-validated predictions are exact, and thresholds need these
    learned = fitted.learned
    memory = None
    unknown = None
    if fitted.method == "linear" and fitted.probing.kind == "class":
        x, classes = torch.tensor(learned.x), torch.tensor(learned.y)
        groups = fitted.source.groups
        left_out = fitted.probe.left_out
        token = last_token(classifier)
        unknown = fit_unknown(x, classes, left_out, groups=groups, told_by=token)
        if not is_elsewhere(fitted.source):
            labels = fitted.probing.labels
            memory = remembered(fitted.source, learned, labels, fitted.precision)

    headless = replace(classifier.to("cpu"), origin=_origin(fitted), unknown=unknown)
    probing = fitted.probing
    return with_probe(headless, fitted.probe, probing.labels, probing.activation), memory


def _origin(fitted: Fitted) -> dict:
    """The provenance of the model, which is saved with it."""
    origin = {
        "init": fitted.model,
        "head": f"{fitted.method} probe, temperature {fitted.probe.temperature:.3g}",
        "data": fitted.data,
        "metrics": {metric.name: metric.text() for metric in fitted.metrics},
        "split_seed": 0,
        "groups": fitted.groups,
        "learned": list(fitted.parts),
    }
    if fitted.held_out:
        origin["held_out"] = fitted.held_out
    return origin
