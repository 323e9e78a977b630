"""Images that deserve a second look."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.curation import (
    Move,
    Survey,
    move,
    moves,
    moves_back,
    read_corrections,
    repeats,
    survey,
)
from vitkit.data import Columns, Source, Splits, splits_at, subset, write_list
from vitkit.evaluation import (
    KINDS,
    Finding,
    features,
    outliers,
    probe,
    unusual_looks,
    write_review,
    wrong_labels,
)
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import as_word, counted, printable, printable_name
from vitkit.system.errors import BadData, BadSettings, BadWeights
from vitkit.system.machine import cpus, pick_device
from vitkit.system.storage.files import check_replaceable
from vitkit.training import adapted_to
from vitkit.verbs.arguments import Data, DataColumns, Device, Groups, ModelHints, SplitSeed, word_of
from vitkit.verbs.computing import classifier_of
from vitkit.verbs.definition import result, verb
from vitkit.verbs.words import MODEL
from vitkit.weights import Classifier, Hints

SHOWN = 10  # probably wrong labels on the terminal
KNOWS_LITTLE = 0.7  # share of answers as labelled below which a model's doubts are often its own
LEFT_OUT = ("label", "duplicate", "unreadable")  # kinds that --exclude lists


@dataclass(frozen=True)
class Review:
    """Find images that deserve a second look: labels that are probably wrong, judged by a model of
    all other images; pictures that are there twice; images unlike all others; dark, blurred and
    odd-sized ones. Nothing is trained, and nothing is changed."""

    data: Data
    model: Annotated[Positional[str], arg(metavar="MODEL", help=MODEL)] = ""
    named_model: Annotated[str, arg(name="model", metavar="MODEL")] = ""
    """The same as MODEL, if it is not the second word."""
    output: Annotated[Path, arg(aliases=["-o"])] = Path("review.html")
    """Page to write, which shows these images."""
    exclude: Path | None = None
    """Write a list into this file, for --data.exclude of `vitkit train` and `vitkit finetune`: the
    training images whose label is probably wrong, that are duplicates, or that cannot be read.
    Check the list before you use it: each line gives a reason."""
    columns: DataColumns = field(default_factory=Columns)
    groups: Groups = "auto"
    split_seed: SplitSeed = 0
    device: Device = "auto"
    apply: Path | None = None
    """List that you saved on the page: print which files of DATA, a folder of classes, will be
    moved, and where. No MODEL is needed."""
    undo: bool = False
    """With --apply: move the same files back to where they were."""
    yes: bool = False
    """With --apply: move the files. Nothing is deleted or replaced: photographs to leave out go to
    the folder DATA-left-out."""
    json: bool = False
    """Print the findings as JSON, one line each."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class Reviewed:
    """Images that deserve a second look."""

    settings: Review
    model: str
    """The model that has looked, as a word of a command."""
    splits: Splits
    """The data set."""
    findings: tuple[Finding, ...]
    facts: tuple[str, ...]
    """What was looked at, in sentences."""
    path: Path
    """The page of the pictures."""
    listed: int | None
    """Training images in the list to train without; None if none was written."""

    def rows(self) -> list[dict]:
        """A row for each finding."""
        return [finding._asdict() for finding in self.findings]

    def shown(self) -> Iterator[str | Table]:
        """How many findings there are of each kind, and where the page is; or JSON, a line each."""
        if self.settings.json:
            for finding in self.findings:
                yield json.dumps(finding._asdict())
            return
        for note in filter(None, (*self.splits.notes, self.splits.unlearned)):
            yield printable(note)
        yield from self.facts
        yield from _tables(self.findings)
        yield from self.written()
        data = as_word(self.settings.data)
        exclude = self.settings.exclude
        if exclude is None:
            yield (
                f"next: open {as_word(self.path)}, choose there what is wrong and save the list; or give "
                "--exclude FILE for a list of all"
            )
        else:
            yield (
                f"next: look through {as_word(exclude)}, then vitkit finetune {self.model} "
                f"{data} --data.exclude {as_word(exclude)}"
            )

    def written(self) -> Iterator[str]:
        """The files that were written."""
        yield f"wrote {self.path}"
        if self.listed is not None:
            yield f"wrote {counted(self.listed, 'training image')} into {self.settings.exclude}"


@result
@dataclass(frozen=True)
class Applied:
    """The moves of files that a reader's list asks for."""

    settings: Review
    moves: tuple[Move, ...]
    """Each file and where it goes, or has gone."""

    @property
    def path(self) -> Path:
        """The list."""
        return self.settings.apply

    def rows(self) -> list[dict]:
        """A row for each file."""
        return [{"before": str(each.before), "after": str(each.after)} for each in self.moves]

    def shown(self) -> Iterator[str]:
        """The output: every file and its destination, and the next command."""
        settings = self.settings
        count = counted(len(self.moves), "file")
        if not self.moves:
            yield f"nothing of {as_word(settings.apply)} is to be moved"
            return
        for before, after in self.moves:
            yield printable(f"{before} -> {after}")
        words = f"vitkit data review {as_word(settings.data)} --apply {as_word(settings.apply)}"
        if not settings.yes:
            undo = " --undo" if settings.undo else ""
            yield f"{count} would be moved, and none was; next: {words}{undo} --yes"
        elif settings.undo:
            yield f"moved {count} back"
        else:
            yield f"moved {count}; {words} --undo --yes moves them back"


def _applied(settings: Review) -> Applied:
    """Say where files go, or move them."""
    root = Path(settings.data)
    if not root.is_dir():
        raise BadData(
            f"`apply` moves files of a folder of classes, and {settings.data} is none; "
            f"`data.exclude={str(settings.apply)!r}` trains without what the list names"
        )
    corrections = read_corrections(settings.apply)
    if settings.undo:
        planned = moves_back(root, corrections)
    else:
        planned = moves(root, corrections)
    if settings.yes:
        move(planned)
    return Applied(settings, tuple(planned))


@verb
def review(settings: Review) -> Reviewed | Applied:
    """Look at every image: labels that are probably wrong, judged by a model of all other images;
    pictures that are there twice; images unlike all others. Nothing is trained, and nothing changed.
    With `apply`, what a reader has decided on its page is done to the files. Raises ValueError without
    a model."""
    if settings.apply is not None:
        return _applied(settings)
    if settings.undo or settings.yes:
        raise BadSettings("`undo` and `yes` go with `apply=FILE`")

    # What is to be looked at, and by which model
    model = _model_of(settings)
    if settings.output.suffix.lower() != ".html":
        raise BadSettings(f"`output` is {settings.output}; give the name of an .html file")
    check_replaceable(settings.output)
    if settings.exclude is not None:
        check_replaceable(settings.exclude)
    splits = splits_at(
        settings.data, settings.columns, settings.split_seed, settings.groups, True, typed=True
    )
    if settings.exclude is not None and splits.train is None:
        raise BadData(f"{settings.data} has no training images, so `exclude` could list none")
    classifier = classifier_of(model, replace(settings.hints, channels=None))
    images = next(iter(splits.sources.values()))
    classifier = adapted_to(classifier, settings.hints.channels, images, say)
    classifier = classifier.to(pick_device(settings.device)).for_inference()

    # Look, and write what was seen
    findings, facts = look_through(splits, classifier)
    page = write_review(settings.output, settings.data, splits.sources, findings, facts)
    listed = None
    if settings.exclude is not None:
        # The training images to leave out, each with its reasons
        reasons: dict[int, list[str]] = {}
        for finding in findings:
            if finding.part == "train" and finding.kind in LEFT_OUT:
                reasons.setdefault(finding.index, []).append(f"{finding.kind}: {finding.reason}")
        write_list(
            settings.exclude,
            splits.train,
            {index: "; ".join(texts) for index, texts in reasons.items()},
        )
        listed = len(reasons)
    reviewed = Reviewed(
        settings, word_of(model), splits, tuple(findings), tuple(facts), page, listed
    )
    if settings.json:  # standard output is for the JSON alone
        for sentence in reviewed.written():
            say(sentence)
    return reviewed


def _model_of(settings: Review) -> str | Classifier:
    """The model that is to look. Raises ValueError if there is none, or there are two."""
    models = [model for model in (settings.model, settings.named_model) if model != ""]
    if not models:
        raise BadSettings(
            "which model is to look? vitkit data review "
            f"{as_word(settings.data)} MODEL; any pre-trained one will do"
        )
    if len(models) == 2 and models[0] != models[1]:
        raise BadSettings(f"{models[0]} and {models[1]} are two models; give only one")
    return models[0]


def look_through(splits: Splits, classifier: Classifier) -> tuple[list[Finding], list[str]]:
    """All findings, and the facts of the review, in sentences."""
    # The pixels of every image, and its features if it can be read
    parts = splits.sources
    surveys = {
        name: survey(part, cpus(), bar(f"looking at {name}")) for name, part in parts.items()
    }
    rows = []
    for name, part in parts.items():
        readable = np.flatnonzero(surveys[name].good)
        if len(readable):
            rows.append(features(classifier, subset(part, readable)).x)
    x = np.concatenate(rows)
    broken = int((~np.isfinite(x).all(1)).sum())
    if broken:
        raise BadWeights(
            f"the model gives NaN or infinity for {counted(broken, 'image')}; its weights may be "
            "damaged"
        )

    # What is unusual
    places = _places(surveys, readable=True)
    facts = [f"{counted(len(x), 'image')} in {', '.join(parts)}"]
    findings = []
    if splits.target_kind == "class" and len(splits.labels) > 1:
        found, said, accuracy = _labels(parts, places, x)
        findings += found
        facts.append(f"{accuracy:.1%} of the images are answered as labelled by all the others")
        facts += said
        if accuracy < KNOWS_LITTLE:
            facts.append(
                "the model knows little of these classes: many of the labels that it doubts are right, "
                "and it misses wrong ones; a model that was fine-tuned on such images says more"
            )
    else:
        facts.append("labels were not judged: that takes images of one class each, of two or more")
    stretched = sum(int(seen.stretched.sum()) for seen in surveys.values())
    if stretched:
        facts.append(
            f"{counted(stretched, 'image')} of more than 8 bits, or of other channels than colours, "
            "are looked at stretched from black to white, so whether they are dark or pale was not "
            "judged; the model sees them as in training, where a small part of the levels is nearly "
            "black, and what it says of labels and outliers means little then"
        )
    findings += _duplicates(parts, surveys)
    findings += _outliers(parts, places, x)
    findings += _looks(parts, surveys, places)
    for name, seen in surveys.items():
        for index, reason in seen.bad.items():
            findings.append(_finding("unreadable", parts, (name, index), reason))
    return findings, facts


def _places(surveys: dict[str, Survey], readable: bool) -> list[tuple[str, int]]:
    """Part and number of every image, or of those that can be read, one part after the other."""
    places = []
    for name, seen in surveys.items():
        numbers = range(len(seen.source))
        if readable:
            numbers = np.flatnonzero(seen.good).tolist()
        places += [(name, number) for number in numbers]
    return places


def _finding(
    kind: str,
    parts: dict[str, Source],
    place: tuple[str, int],
    reason: str,
    like: tuple[str, int] | None = None,
    guess: str = "",
) -> Finding:
    """A finding at a place."""
    name, index = place
    source = parts[name]
    label = source.answer(index) or ""
    return Finding(kind, name, index, source.name(index), label, reason, like, guess)


def _labels(
    parts: dict[str, Source], places: list[tuple[str, int]], x: np.ndarray
) -> tuple[list[Finding], list[str], float]:
    """Labels that are probably wrong, the surest first; how many are expected to be, in sentences; and
    the share of images that are answered as they are labelled."""
    labels = next(iter(parts.values())).labels
    targets = np.array([parts[name].targets[index] for name, index in places])
    known, classes = np.unique(targets, return_inverse=True)
    if len(known) < 2:
        return [], [], 1.0
    groups = None
    if all(part.groups is not None for part in parts.values()):
        groups = np.array([parts[name].groups[index] for name, index in places])
    logits = probe("linear", x, classes, len(known), groups=groups).left_out.numpy()
    accuracy = float((logits.argmax(1) == classes).mean())
    wrong = wrong_labels(logits, classes)
    if wrong is None:
        return [], ["no label was judged: the answers are hardly better than guesses"], accuracy

    findings = []
    for suspect in wrong.suspects:
        guess = labels[known[suspect.answer]]
        reason = f"{printable_name(guess)} {suspect.probability:.0%}, as labelled {suspect.own:.0%}"
        findings.append(_finding("label", parts, places[suspect.index], reason, guess=guess))
    expected = (
        f"about {len(findings):,} of {len(classes):,} labels are expected to be wrong, between "
        f"{wrong.low:,} and {wrong.high:,}; those that most probably are, are listed"
    )
    if not findings:
        expected = f"no label is expected to be wrong; up to {wrong.high:,} may be"
    sentences = [expected]
    if wrong.unclear is not None:
        label = printable_name(labels[known[wrong.unclear.label]])
        answer = printable_name(labels[known[wrong.unclear.answer]])
        sentences.append(
            f"how many are wrong depends on what no image can tell: if {answer} is regularly labelled {label}, "
            f"or if the two only look alike ({counted(wrong.unclear.images, 'label')} more or fewer, of this pair "
            f"alone). Look at ten images labelled {label} that are taken for {answer}: if most are wrong, so are "
            "more than are listed"
        )
    return findings, sentences, accuracy


def _duplicates(parts: dict[str, Source], surveys: dict[str, Survey]) -> Iterator[Finding]:
    """Pictures that are there twice. Of one in two parts, the one that is trained on is named."""
    places = _places(surveys, readable=False)
    for pair in repeats(list(surveys.values())):
        place, like = places[pair.first], places[pair.second]
        if like[0] == "train" and place[0] != "train":
            place, like = like, place
        other = parts[like[0]]
        words = "looks like"
        if pair.bits < 0:
            words = "the same file as"
        reason = f"{words} {printable_name(other.name(like[1]))}"
        if like[0] != place[0]:
            reason += f" in {like[0]}"
        answer = other.answer(like[1])
        if answer != parts[place[0]].answer(place[1]):
            reason += f", labelled {printable_name(answer or 'nothing')}"
        yield _finding("duplicate", parts, place, reason, like)


def _outliers(
    parts: dict[str, Source], places: list[tuple[str, int]], x: np.ndarray
) -> Iterator[Finding]:
    """Images unlike all others."""
    for i, deviations in outliers(x):
        reason = f"{deviations:.1f} standard deviations from its nearest"
        yield _finding("outlier", parts, places[i], reason)


def _looks(
    parts: dict[str, Source], surveys: dict[str, Survey], places: list[tuple[str, int]]
) -> Iterator[Finding]:
    """Dark, blurred and odd-sized images."""
    seen = surveys.values()
    sizes = np.concatenate([part.sizes[part.good] for part in seen])
    thumbnails = np.concatenate([part.thumbnails[part.good] for part in seen])
    sharpness = np.concatenate([part.sharpness[part.good] for part in seen])
    stretched = np.concatenate([part.stretched[part.good] for part in seen])
    for i, words in unusual_looks(sizes, thumbnails, sharpness, stretched).items():
        height, width = sizes[i]
        yield _finding("looks", parts, places[i], f"{words} ({width} x {height})")


def _tables(findings: Sequence[Finding]) -> Iterator[Table]:
    """How many findings there are of each kind, and the labels that are most probably wrong."""
    table = Table("a second look", "images")
    table.columns[1].justify = "right"
    for kind, heading in KINDS.items():
        table.add_row(heading, f"{sum(finding.kind == kind for finding in findings):,}")
    yield table

    labels = [finding for finding in findings if finding.kind == "label"][:SHOWN]
    if labels:
        table = Table("image", "label", "the others say")
        table.columns[0].overflow = "fold"
        for finding in labels:
            texts = (printable(finding.name), printable_name(finding.label), finding.reason)
            table.add_row(*map(escape, texts))
        yield table
