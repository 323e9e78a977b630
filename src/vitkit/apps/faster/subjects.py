"""The subject of a search: a classifier, and the images for evaluating its candidates, from which
it has not learned.

For a run with a closed-form head, these are its training images with leave-one-out predictions, so
the test part stays unseen. For other models they are the images that the run held out, or a given
data set.

Legend: N images, K classes, D width.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.apps.faster.losses import Evidence
from vitkit.data import Source, fingerprint, parts_at, source_at, subset
from vitkit.data.sources.recorded import NotTyped
from vitkit.evaluation import Probing, align, digest_of
from vitkit.finetuning import CLOSED_FORM, is_quick, question
from vitkit.runtimes import folder_of
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, VitkitError
from vitkit.system.storage.files import check_types, parse_json, write_json
from vitkit.system.storage.records import record_of
from vitkit.training import open_learned, open_part, read_run
from vitkit.training.reports.answers import HELD_OUT
from vitkit.weights import Classifier

# Largest number of images with leave-one-out predictions; of more, other images suffice
LEFT_OUT = 20_000
EVALUATED = 5_000  # largest number of images for evaluating candidates
FITTED = 2_000  # largest number of images for fitting heads of models without a closed-form head
CALIBRATED = 100  # calibration images for the ranges of int8
FEWEST = 20  # smallest number of images for evaluating candidates


@dataclass(frozen=True, eq=False)
class SearchSubject:
    """A classifier, and the images of a search."""

    classifier: Classifier
    evaluated: Source
    """The images for evaluating candidates, with class numbers of the classifier as targets."""
    fitted: Source
    """The images for fitting heads and for calibrating int8; equal to `evaluated` with leave-one-out
    predictions."""
    asked: Probing | None
    """The probing task of closed-form heads, if the classifier has one; None if heads are distilled from
    the classifier's logits."""
    where: str
    """Description of where the images come from, for messages."""

    @property
    def is_left_out(self) -> bool:
        """Whether predictions are leave-one-out."""
        return self.asked is not None

    @property
    def for_calibration(self) -> Source:
        """Calibration images, chosen evenly from `fitted`."""
        return _spread(self.fitted, CALIBRATED)

    def digest(self) -> str:
        """A digest that identifies the images."""
        return f"{fingerprint(self.evaluated)} {fingerprint(self.fitted)} {self.is_left_out}"


def of_run(classifier: Classifier, run_dir: Path, typed: Sequence[str] = ()) -> SearchSubject:
    """The subject for a run's model, with the images of the run.

    typed: names of data sets that a user typed, as `read_run` takes them. Raises VitkitError if the
    images are missing or have changed, and if none was held out.
    """
    run = read_run(run_dir, typed)
    counts = run.data["counts"]
    chosen = run.lines[-1].get("evaluator")
    few = sum(counts[name] for name in ("train", HELD_OUT) if name in counts) <= LEFT_OUT
    parts = [name for name in (HELD_OUT, "val", "test") if name in counts]
    if is_quick(run_dir) and chosen == CLOSED_FORM:
        parts = [name for name in ("val", "test") if name in counts]
    if is_quick(run_dir) and chosen == CLOSED_FORM and (few or not parts):
        with _with_advice():
            learned = open_learned(run)
        _check_target(learned, str(run_dir))
        if len(learned.labels) != len(classifier.labels):
            raise BadData(
                f"the model has {len(classifier.labels)} classes and the images of {run_dir} "
                f"{len(learned.labels)}: it was taught afterwards; name images of all classes that it has not "
                "learned from with `data`"
            )
        balanced = run.recipe.get("objective", {}).get("class_weights") == "balanced"
        asked = question("class", learned.labels, balanced)
        where = f"{len(learned):,} images of {run_dir}, by leave-one-out predictions"
        return SearchSubject(classifier, learned, learned, asked, where)

    # The backbone has learned from the training part, or there are more images than are needed
    if not parts:
        raise BadData(
            f"{run_dir} has learned from all its images, so none of them can show what a faster model loses; name "
            "others, sorted into folders of their classes, with `data`"
        )
    with _with_advice():
        evaluated = open_part(run, parts[0])
        train = open_part(run, "train")
    _check_target(evaluated, str(run_dir))
    evaluated = _spread(evaluated, EVALUATED)
    where = f"{len(evaluated):,} images that {run_dir} has not learned from ({parts[0]})"
    return SearchSubject(classifier, evaluated, _spread(train, FITTED), None, where)


@contextmanager
def _with_advice() -> Iterator[None]:
    """Adds advice to the error for a run's images that can no longer be opened."""
    try:
        yield
    except NotTyped:  # has advice of its own
        raise
    except VitkitError as error:
        raise BadData(f"{error}; name images that it has not learned from with `data`") from None


def of_data(classifier: Classifier, data: str, run_dir: Path | None = None) -> SearchSubject:
    """The subject for a model with the test part of a data set that the user named, from which the
    model has not learned.

    Heads are fitted to the images of the model's run, if there is one; else to the data set's
    training part. If the data set has only one part, every second image (or group of images) is for
    fitting, and the others are for evaluation. Raises VitkitError for images without classes, or
    with none of the model's classes.
    """
    evaluated = source_at(data, typed=True)
    _check_target(evaluated, data)
    learned = None
    if run_dir is not None:
        learned = _learned_by(run_dir, data)
    if run_dir is not None and learned is not None:
        evaluated = _unseen(evaluated, learned, data, run_dir)
    else:
        learned = parts_at(data, typed=True).sources.get("train")
        if learned is not None and np.isin(learned.rows, evaluated.rows).any():
            learned = None
    if learned is None:
        learned, evaluated = _halves(evaluated)
    evaluated = _spread(_in_classes_of(evaluated, classifier, data), EVALUATED)
    where = f"{len(evaluated):,} images of {data}"
    return SearchSubject(classifier, evaluated, _spread(learned, FITTED), None, where)


def _learned_by(run_dir: Path, data: str) -> Source | None:
    """The training and held-out images of a run; None, with a log message, if they cannot be read
    here."""
    try:
        return open_learned(read_run(run_dir, typed=(data,)))
    except (VitkitError, OSError) as error:
        say(
            f"whether {data} has images that {run_dir} has learned from is not known, so take care that it "
            f"has none: {error}"
        )
        return None


def _unseen(evaluated: Source, learned: Source, data: str, run_dir: Path) -> Source:
    """The images that are not among those that a run has learned from, compared by content; logs how many
    are left out. Raises VitkitError if too few are left."""
    reading = bar("comparing with what was learned")
    seen = {digest_of(learned[i][0]) for i in reading(range(len(learned)), len(learned))}
    unseen = [i for i in range(len(evaluated)) if digest_of(evaluated[i][0]) not in seen]
    if len(unseen) == len(evaluated):
        return evaluated
    if len(unseen) < FEWEST:
        raise BadData(
            f"{run_dir} has learned from {len(evaluated) - len(unseen):,} of the {len(evaluated):,} images of "
            f"{data}, and {FEWEST} others are needed at least"
        )
    say(
        f"left out: {len(evaluated) - len(unseen):,} images of {data}, from which {run_dir} has learned"
    )
    return subset(evaluated, unseen)


def _halves(source: Source) -> tuple[Source, Source]:
    """Two halves of the images, alternating; images of one group stay together."""
    number = np.arange(len(source))
    if source.groups is not None:
        _, number = np.unique(source.groups, return_inverse=True)
    is_first = number % 2 == 0
    return subset(source, np.flatnonzero(is_first)), subset(source, np.flatnonzero(~is_first))


def _check_target(source: Source, where: str) -> None:
    """Raises VitkitError if the images do not have one class each, or if there are too few."""
    if source.target_kind != "class":
        raise BadData(
            f"the images of {where} do not have one class each, and faster models are compared by "
            "their accuracy"
        )
    if len(source) < FEWEST:
        raise BadData(
            f"{where} has {len(source):,} images to evaluate on; at least {FEWEST} are needed"
        )


def _in_classes_of(source: Source, classifier: Classifier, data: str) -> Source:
    """The images of the model's classes, with its class numbers; logs how many others are left out."""
    classes = align(source.labels, classifier.labels, needed=()).classes.numpy()
    targets = classes[source.target_array]
    known = np.flatnonzero(targets >= 0)
    if len(known) < FEWEST:
        raise BadData(
            f"{len(known):,} images of {data} have a class of the model; at least {FEWEST} are needed"
        )
    if len(known) < len(source):
        say(
            f"left out: {counted(len(source) - len(known), 'image')} of {data}, of classes that the model "
            "does not have"
        )
    renamed = replace(source, targets=targets, labels=classifier.labels)
    return subset(renamed, known)


def _spread(source: Source, most: int) -> Source:
    """At most this number of images, evenly spaced."""
    count = min(len(source), most)
    return subset(source, np.arange(count) * len(source) // count)


class Known:
    """The measured losses and speeds of a model's candidates on a set of images, kept in a file of
    the cache. `folder_of` has one folder per machine, so speeds of other machines are not used."""

    def __init__(self, subject: SearchSubject):
        digest = hashlib.sha256(subject.digest().encode("utf-8", "surrogateescape")).hexdigest()[
            :16
        ]
        self.file = folder_of(subject.classifier) / f"faster-{digest}-3.json"  # 3: format version
        self.evidence: dict[str, Evidence] = {}
        self.races: dict[str, dict] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            values = parse_json(self.file.read_text())
            check_types(values, {"judged": dict, "races": dict})
            evidence = {key: record_of(Evidence, each) for key, each in values["judged"].items()}
            self.evidence, self.races = evidence, values["races"]

    def keep(self) -> None:
        """Write the file; if that is impossible, only logs a message."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            of_each = {key: each._asdict() for key, each in self.evidence.items()}
            write_json(self.file, {"judged": of_each, "races": self.races})
        except OSError as error:
            say(f"what was measured is not kept for the next time: {error}")
