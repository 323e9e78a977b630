"""What is made faster: a classifier, and the images that its candidates are judged on, which it has not
learned from.

Of a run whose head was solved in closed form, these are the images that it has learned from, each answered
by a fit without it: as many as there are, and the test part stays unseen. Of any other model they are the
images that its run held out, or those that are named.

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

# Images, at most, that are answered by fits without them; of more, others tell enough
LEFT_OUT = 20_000
JUDGED = 5_000  # images, at most, that a model is judged on,
FITTED = 2_000  # and that heads are fitted to, if the model's own is not solved in closed form
CALIBRATED = 100  # images that give the ranges of int8
FEWEST = 20  # images that anything can be said about


@dataclass(frozen=True, eq=False)
class SearchSubject:
    """A classifier, and the images of a search."""

    classifier: Classifier
    judged: Source
    """The images that candidates are judged on, with the classifier's classes as targets."""
    fitted: Source
    """The images that heads are fitted to, and that calibrate int8. The same, if each is answered by a
    fit without it."""
    asked: Probing | None
    """What heads in closed form answer, if the classifier's is one; None if heads are fitted to the
    classifier's own answers."""
    where: str
    """Where the images are from, for people."""

    @property
    def is_left_out(self) -> bool:
        """Whether each image is answered by a fit without it."""
        return self.asked is not None

    @property
    def for_calibration(self) -> Source:
        """Some of the images to fit to, evenly from all."""
        return _spread(self.fitted, CALIBRATED)

    def digest(self) -> str:
        """Identifies the images."""
        return f"{fingerprint(self.judged)} {fingerprint(self.fitted)} {self.is_left_out}"


def of_run(classifier: Classifier, run_dir: Path, typed: Sequence[str] = ()) -> SearchSubject:
    """A run's model on the images of the run.

    typed: names of data sets that a person typed, as `read_run` takes them. Raises VitkitError if the
    images are not there, or are others now, and if none was held out.
    """
    run = read_run(run_dir, typed)
    counts = run.data["counts"]
    chosen = run.lines[-1].get("evaluator")
    few = sum(counts[name] for name in ("train", HELD_OUT) if name in counts) <= LEFT_OUT
    parts = [name for name in (HELD_OUT, "val", "test") if name in counts]
    if is_quick(run_dir) and chosen == CLOSED_FORM:
        parts = [name for name in ("val", "test") if name in counts]
    if is_quick(run_dir) and chosen == CLOSED_FORM and (few or not parts):
        with _or_others():
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
        where = f"{len(learned):,} images of {run_dir}, each answered by a fit without it"
        return SearchSubject(classifier, learned, learned, asked, where)

    # Its weights have learned from the training part, or there are more images than are needed
    if not parts:
        raise BadData(
            f"{run_dir} has learned from all its images, so none of them can show what a faster model loses; name "
            "others, sorted into folders of their classes, with `data`"
        )
    with _or_others():
        judged = open_part(run, parts[0])
        train = open_part(run, "train")
    _check_target(judged, str(run_dir))
    judged = _spread(judged, JUDGED)
    where = f"{len(judged):,} images that {run_dir} has not learned from ({parts[0]})"
    return SearchSubject(classifier, judged, _spread(train, FITTED), None, where)


@contextmanager
def _or_others() -> Iterator[None]:
    """Says of a run's images that cannot be opened any more what to do."""
    try:
        yield
    except NotTyped:  # which says what to do
        raise
    except VitkitError as error:
        raise BadData(f"{error}; name images that it has not learned from with `data`") from None


def of_data(classifier: Classifier, data: str, run_dir: Path | None = None) -> SearchSubject:
    """A model on images that it has not learned from: the test part of a data set, whose name a person
    typed.

    What is fitted is fitted to the images of its run, if there is one; else to the data's training part,
    or to every second image if the data has but one part (of images in groups: to every second group),
    and then it is judged on the others. Raises VitkitError for images without classes, and without those of
    the model.
    """
    judged = source_at(data, typed=True)
    _check_target(judged, data)
    learned = None
    if run_dir is not None:
        learned = _learned_by(run_dir, data)
    if run_dir is not None and learned is not None:
        judged = _unseen(judged, learned, data, run_dir)
    else:
        learned = parts_at(data, typed=True).sources.get("train")
        if learned is not None and np.isin(learned.rows, judged.rows).any():
            learned = None
    if learned is None:
        learned, judged = _halves(judged)
    judged = _spread(_in_classes_of(judged, classifier, data), JUDGED)
    where = f"{len(judged):,} images of {data}"
    return SearchSubject(classifier, judged, _spread(learned, FITTED), None, where)


def _learned_by(run_dir: Path, data: str) -> Source | None:
    """The images that a run has learned from, or chosen by; None, which is said, if they are elsewhere."""
    try:
        return open_learned(read_run(run_dir, typed=(data,)))
    except (VitkitError, OSError) as error:
        say(
            f"whether {data} has images that {run_dir} has learned from is not known, so take care that it "
            f"has none: {error}"
        )
        return None


def _unseen(judged: Source, learned: Source, data: str, run_dir: Path) -> Source:
    """The images without those that a run has learned from, by their content; which is said. Raises
    VitkitError if too few are left."""
    reading = bar("comparing with what was learned")
    seen = {digest_of(learned[i][0]) for i in reading(range(len(learned)), len(learned))}
    unseen = [i for i in range(len(judged)) if digest_of(judged[i][0]) not in seen]
    if len(unseen) == len(judged):
        return judged
    if len(unseen) < FEWEST:
        raise BadData(
            f"{run_dir} has learned from {len(judged) - len(unseen):,} of the {len(judged):,} images of "
            f"{data}, and {FEWEST} others are needed at least"
        )
    say(
        f"left out: {len(judged) - len(unseen):,} images of {data}, from which {run_dir} has learned"
    )
    return subset(judged, unseen)


def _halves(source: Source) -> tuple[Source, Source]:
    """Every second image, and the others; what is of one group stays together."""
    number = np.arange(len(source))
    if source.groups is not None:
        _, number = np.unique(source.groups, return_inverse=True)
    is_first = number % 2 == 0
    return subset(source, np.flatnonzero(is_first)), subset(source, np.flatnonzero(~is_first))


def _check_target(source: Source, where: str) -> None:
    """Raises VitkitError for images without one class each, and for too few."""
    if source.target_kind != "class":
        raise BadData(
            f"the images of {where} do not have one class each, and a faster model is judged by how "
            "often its class is the right one"
        )
    if len(source) < FEWEST:
        raise BadData(
            f"{where} has {len(source):,} images to judge by; at least {FEWEST} are needed"
        )


def _in_classes_of(source: Source, classifier: Classifier, data: str) -> Source:
    """The images whose class the model has, with its number there; how many others there are is said."""
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
    """At most so many of the images, evenly from all."""
    count = min(len(source), most)
    return subset(source, np.arange(count) * len(source) // count)


class Known:
    """The losses and speeds of a model's candidates on some images, kept in a file of the cache:
    of this machine, as `folder_of` tells machines apart."""

    def __init__(self, subject: SearchSubject):
        digest = hashlib.sha256(subject.digest().encode("utf-8", "surrogateescape")).hexdigest()[
            :16
        ]
        self.file = folder_of(subject.classifier) / f"faster-{digest}-3.json"  # 3: its third form
        self.judged: dict[str, Evidence] = {}
        self.races: dict[str, dict] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            values = parse_json(self.file.read_text())
            check_types(values, {"judged": dict, "races": dict})
            judged = {key: record_of(Evidence, each) for key, each in values["judged"].items()}
            self.judged, self.races = judged, values["races"]

    def keep(self) -> None:
        """Write it down; what cannot be written is only not kept."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            judged = {key: evidence._asdict() for key, evidence in self.judged.items()}
            write_json(self.file, {"judged": judged, "races": self.races})
        except OSError as error:
            say(f"what was measured is not kept for the next time: {error}")
