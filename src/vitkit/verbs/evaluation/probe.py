"""A new head on a model's features, in closed form."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.table import Table

from vitkit.data import Columns, Source, Splits, fingerprint, is_elsewhere, merge_parts
from vitkit.evaluation import (
    Features,
    Measured,
    Memory,
    Metric,
    Probe,
    Probing,
    features,
    fit_unknown,
    last_token,
    remembered,
    rounded,
    share_right,
    voted,
    with_probe,
    write_memory,
)
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, some
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.system.storage.files import check_can_be_made
from vitkit.verbs.arguments import (
    Data,
    DataColumns,
    Device,
    Groups,
    Model,
    ModelHints,
    OnBadImage,
    Precision,
    name_of,
    pick_precision,
)
from vitkit.verbs.definition import result, verb
from vitkit.verbs.evaluation.outcome import metrics_table, rows_of_metrics
from vitkit.verbs.made_model import MadeModel
from vitkit.verbs.sources import As, splits_to_learn_from
from vitkit.weights import Classifier, Hints, adopt, check_savable, load_as, save

HAVE = {"classes": "have several", "number": "have a number"}  # kinds of targets, in a sentence


@dataclass(frozen=True)
class FitProbe:
    """Fit a linear head to the features of your images, in seconds and without training, and save
    the model with it. The head learns from all images except the test part. Each of these is also
    classified by a fit without it, which shows how good the head is even if there is no test part.
    Images may have one class each, several classes, or a number."""

    model: Model
    data: Data
    to: Path | None = None
    """Directory to save the model with its new head in. Default: none, only the accuracy is
    printed."""
    method: Literal["linear", "prototype", "logistic", "neighbours"] = "linear"
    """linear: least squares, also for several classes and for numbers; prototype: the class with
    the nearest mean; logistic: scikit-learn's logistic regression; neighbours: a vote of the
    nearest training images, which gives no head to save."""
    k: int = 20
    """Neighbours that vote."""
    named: As = None
    columns: DataColumns = field(default_factory=Columns)
    groups: Groups = "auto"
    on_bad_image: OnBadImage = "fail"
    precision: Precision = "auto"
    device: Device = "auto"
    json: bool = False
    """Print the metrics as one line of JSON: {name: {"value", "unit", "interval"}}."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True, eq=False)
class Probed(MadeModel):
    """A new head on a model's features."""

    settings: FitProbe
    classifier: Classifier | None
    """The model with its new head; None for neighbours, which have no head."""
    metrics: tuple[Metric, ...]
    """What it reaches on images that it did not learn from; under torchrun empty but on rank 0."""
    title: str
    """What was fitted to what."""
    seconds: float
    """What the fit took."""
    path: Path | None
    """The directory that the model was saved in."""
    remembers: bool
    """Whether it can be taught more photographs."""

    @property
    def made(self) -> "str | Classifier":
        """Where the model was saved, or the classifier. Raises ValueError for neighbours, which have no
        head."""
        if self.path is not None:
            return str(self.path)
        if self.classifier is None:
            raise BadSettings(f"{self.settings.method} makes no model; method='linear' does")
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
        if self.settings.json:
            yield json.dumps(self.to_json(), allow_nan=False)
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
            yield "next: the same with --to DIRECTORY, which saves the model with it"
            return
        word = as_word(self.path)
        teach = f"; vitkit teach {word} changes what it knows" if self.remembers else ""
        yield f"wrote {self.path}{teach}"
        yield f"next: vitkit predict {word} IMAGE..., or vitkit evaluate {word} DATA"


@verb
def probe(settings: FitProbe) -> Probed:
    """Fit a linear head to the features of images, in seconds and without training. Every image is also
    answered by a fit without it, which says how good the head is where no test image is left.

    Raises ValueError for images without labels, and for features that are not finite.
    """
    _check(settings)
    with process_group(settings.device) as device:
        # The model, and the images to learn from
        loaded = settings.model
        if not isinstance(loaded, Classifier):
            loaded = load_as(loaded, settings.hints, quiet=not on_rank_0())
        splits, held_out = splits_to_learn_from(
            settings.data, settings.columns, settings.named, settings.on_bad_image, settings.groups
        )
        parts = _to_learn(settings, splits)
        train = reduce(merge_parts, parts)
        name = "val" if splits.test is None else "test"
        test = getattr(splits, name)
        probing = Probing.of(train)
        for sentence in (*splits.notes, *_missing(probing, train, test)):
            say(sentence)

        # Their features, as the new head will read them
        adopted, _ = adopt(loaded, labels=probing.labels, new_head=True)
        classifier = adopted.to(device)
        if settings.to is not None:
            check_savable(classifier, settings.to)
        deployed = classifier.for_inference()
        measured = {}
        precision = pick_precision(settings.precision, device)
        with autocast(device, precision):
            learned = _features(deployed, probing, train)
            if test is not None:
                found = _features(deployed, probing, test)
                measured[name] = Measured(found, test.groups)
        title = _title(settings, probing, len(train))
        if not on_rank_0():
            return Probed(settings, None, (), title, 0.0, None, False)

    # The head, and what it reaches
    began = time.monotonic()
    if settings.method == "neighbours":
        metrics = _neighbours(settings.k, learned, measured, train.groups)
        seconds = time.monotonic() - began
        return Probed(settings, None, tuple(metrics), title, seconds, None, False)
    _refuse_broken(settings, learned, train)
    fitted = probing.fit(settings.method, learned, train.groups)
    metrics = probing.qualities(fitted, learned, measured, train.groups)
    seconds = time.monotonic() - began
    for sentence in probing.chance(fitted, learned, measured, train.groups):
        say(sentence)

    # The model with it, saved if that is wanted
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
    probed, memory = with_fitted(settings, classifier, made)
    if settings.to is not None:
        save(probed, settings.to)
        if memory is not None:
            write_memory(settings.to, memory, probed)
    outcome = Probed(
        settings, probed, tuple(metrics), title, seconds, settings.to, memory is not None
    )
    if settings.json:  # standard output is for the JSON alone
        for sentence in outcome.written():
            say(sentence)
    return outcome


def _check(settings: FitProbe) -> None:
    """Raises ValueError if settings do not go together, before anything is computed."""
    if settings.to is not None:
        check_can_be_made(settings.to)
    if settings.to is not None and settings.method == "neighbours":
        raise BadSettings("neighbours give no head that could be saved; leave out `to`")
    if settings.k < 1:
        raise BadSettings(f"`k` is {settings.k}; it is a number of neighbours, at least 1")


def _to_learn(settings: FitProbe, splits: Splits) -> list[Source]:
    """The parts to learn from: all but the one to measure on. Raises ValueError if there are none, or
    they have no labels, or not those that the method is for."""
    if splits.train is None:
        raise BadData(f"{settings.data} has no images to learn from, only others to measure on")
    if splits.target_kind == "none":
        raise BadData(
            f"{settings.data} has no labels, so there is nothing to learn: put the images of each "
            "class into a folder, or name the column that holds the classes"
        )
    if splits.target_kind != "class" and settings.method != "linear":
        raise BadSettings(
            f"`method={settings.method!r}` is for images of one class each, and those of {settings.data} "
            f"{HAVE[splits.target_kind]}; `method='linear'` is for them too"
        )
    if splits.val is None or splits.test is None:
        return [splits.train]
    return [splits.train, splits.val]


def _missing(probing: Probing, train: Source, test: Source | None) -> list[str]:
    """Sentences about the classes that no image to learn from has, and those that all have."""
    missing = np.setdiff1d(np.arange(len(train.labels)), probing.known)
    sentences = []
    if probing.kind == "classes":
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
    """The features of images, and their targets as the head has its outputs."""
    found = probing.targets(source, features(classifier, source))
    if last_token(classifier) is None:
        return found
    return found._replace(x=rounded(found.x))


def _refuse_broken(settings: FitProbe, learned: Features, source: Source) -> None:
    """Raises ValueError, with an image's name, for features that are not finite."""
    broken = np.flatnonzero(~np.isfinite(learned.x).all(1))
    if len(broken):
        raise BadSettings(
            f"{name_of(settings.model)} gives NaN or infinity for {len(broken):,} of {len(learned.x):,} "
            f"images, {source.name(broken[0])} for example, so nothing can be fitted to them"
        )


def _neighbours(
    k: int, learned: Features, measured: dict[str, Measured], groups: np.ndarray | None
) -> list[Metric]:
    """The accuracy of the neighbours' vote: of each image's among the others that are learned from,
    and of the other images'."""
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


def _title(settings: FitProbe, probing: Probing, images: int) -> str:
    """What was fitted to what."""
    what = f"{len(probing.labels)} classes"
    if probing.kind == "classes":
        what += ", several an image"
    if probing.kind == "number":
        what = "a number each"
    return f"{settings.method} on {counted(images, 'image')} of {settings.data}, {what}"


@dataclass(frozen=True, eq=False)
class Fitted:
    """A probe, and the data to which it was fitted."""

    probing: Probing
    probe: Probe
    source: Source
    """The images to learn from."""
    learned: Features
    """Their features and targets."""
    precision: str
    """In which they were computed."""
    metrics: list[Metric]
    """What it reaches."""
    held_out: str | None
    """The fingerprint of a test part that was made, by which `vitkit evaluate` knows it again."""
    parts: tuple[str, ...]
    """Fingerprints of the parts of the data that it learned from, so that `vitkit evaluate` can say
    so."""


def with_fitted(
    settings: "FitProbe", classifier: Classifier, fitted: Fitted
) -> tuple[Classifier, Memory | None]:
    """A model with the head. A linear head of images of one class each goes with what it learned from,
    to be taught more, and with limits by which images are unknown."""
    # The left-out answers of the other methods are not exact
    learned = fitted.learned
    memory = None
    unknown = None
    if settings.method == "linear" and fitted.probing.kind == "class":
        x, classes = torch.tensor(learned.x), torch.tensor(learned.y)
        groups = fitted.source.groups
        left_out = fitted.probe.left_out
        token = last_token(classifier)
        unknown = fit_unknown(x, classes, left_out, groups=groups, told_by=token)
        if not is_elsewhere(fitted.source):
            labels = fitted.probing.labels
            memory = remembered(fitted.source, learned, labels, fitted.precision)

    headless = replace(classifier.to("cpu"), origin=_origin(settings, fitted), unknown=unknown)
    probing = fitted.probing
    return with_probe(headless, fitted.probe, probing.labels, probing.activation), memory


def _origin(settings: "FitProbe", fitted: Fitted) -> dict:
    """Where the model comes from."""
    origin = {
        "init": name_of(settings.model),
        "head": f"{settings.method} probe, temperature {fitted.probe.temperature:.3g}",
        "data": settings.data,
        "metrics": {metric.name: metric.text() for metric in fitted.metrics},
        "split_seed": 0,
        "groups": settings.columns.group or settings.groups,
        "learned": list(fitted.parts),
    }
    if fitted.held_out:
        origin["held_out"] = fitted.held_out
    return origin
