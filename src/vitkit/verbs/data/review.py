"""Images that deserve a second look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from json import dumps as to_json
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
from rich.markup import escape
from rich.table import Table

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
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import MODEL, step
from vitkit.system.functions.types import DataLike, DeviceLike, PathLike
from vitkit.system.machine import cpus, pick_device
from vitkit.system.storage.files import check_replaceable
from vitkit.training import adapted_to
from vitkit.verbs.computing import classifier_of
from vitkit.weights import Classifier, ModelLike, Overrides, hints_of

SHOWN = 10  # probably wrong labels on the terminal
KNOWS_LITTLE = 0.7  # share of answers as labelled below which a model's doubts are often its own
LEFT_OUT = ("label", "duplicate", "unreadable")  # kinds that `exclude` lists


@dataclass(frozen=True, repr=False)
class Reviewed(Rows):
    """Images that deserve a second look."""

    data: str
    """The data set, as it was given."""
    model: str | Classifier
    """The model that judged, as it was given."""
    splits: Splits
    """The data set."""
    findings: tuple[Finding, ...]
    facts: tuple[str, ...]
    """What was looked at, in sentences."""
    path: Path
    """The page of the pictures."""
    listed: int | None
    """Training images in the list to train without; None if none was written."""
    exclude: Path | None = None
    """That list."""
    json: bool = False
    """Whether it is printed as lines of JSON."""

    def rows(self) -> list[dict]:
        """A row for each finding."""
        return [finding._asdict() for finding in self.findings]

    def shown(self) -> Iterator[str | Table]:
        """How many findings there are of each kind, and where the page is; or JSON, a line each."""
        if self.json:
            for finding in self.findings:
                yield to_json(finding._asdict())
            return
        for note in filter(None, (*self.splits.notes, self.splits.unlearned)):
            yield printable(note)
        yield from self.facts
        yield from _tables(self.findings)
        yield from self.written()
        if self.exclude is None:
            yield (
                f"next: open {as_word(self.path)}, choose there what is wrong and save the list; or give "
                "`exclude=FILE` for a list of all"
            )
        else:
            training = step("finetune", self.model, self.data, data__exclude=self.exclude)
            yield f"next: look through {as_word(self.exclude)}, then {training}"

    def written(self) -> Iterator[str]:
        """The files that were written."""
        yield f"wrote {self.path}"
        if self.listed is not None:
            yield f"wrote {counted(self.listed, 'training image')} into {self.exclude}"


@dataclass(frozen=True, repr=False)
class Applied(Rows):
    """The moves of files that the list of a reader asks for."""

    data: str
    """The folder of classes."""
    path: Path
    """The list."""
    moves: tuple[Move, ...]
    """Each file and its new place."""
    undo: bool
    """Whether these moves undo earlier ones."""
    moved: bool
    """Whether the files were moved; otherwise they were only listed."""

    def rows(self) -> list[dict]:
        """A row for each file."""
        return [{"before": str(each.before), "after": str(each.after)} for each in self.moves]

    def shown(self) -> Iterator[str]:
        """The output: every file and its destination, and the next command."""
        count = counted(len(self.moves), "file")
        if not self.moves:
            yield f"nothing of {as_word(self.path)} is to be moved"
            return
        for before, after in self.moves:
            yield printable(f"{before} -> {after}")
        undo = {"undo": True} if self.undo else {}
        if not self.moved:
            to_move = step("review", self.data, apply=self.path, **undo, yes=True)
            yield f"{count} would be moved, and none was; next: {to_move}"
        elif self.undo:
            yield f"moved {count} back"
        else:
            to_undo = step("review", self.data, apply=self.path, undo=True, yes=True)
            yield f"moved {count}; {to_undo} moves them back"


def _applied(data: str, path: Path, undo: bool, yes: bool) -> Applied:
    """List the moves of files that a saved list asks for, or, with `yes`, move them."""
    root = Path(data)
    if not root.is_dir():
        raise BadData(
            f"`apply` moves files of a folder of classes, and {data} is none; "
            f"`data.exclude={str(path)!r}` trains without what the list names"
        )
    corrections = read_corrections(path)
    planned = moves_back(root, corrections) if undo else moves(root, corrections)
    if yes:
        move(planned)
    return Applied(data, path, tuple(planned), undo, yes)


@public
def review(
    data: DataLike,
    model: ModelLike = "",
    *,
    named_model: ModelLike = "",
    output: PathLike = Path("review.html"),
    exclude: PathLike | None = None,
    columns: Columns = Columns(),
    groups: Literal["auto", "none"] | str = "auto",
    split_seed: int = 0,
    device: DeviceLike = "auto",
    apply: PathLike | None = None,
    undo: bool = False,
    yes: bool = False,
    json: bool = False,
    **overrides: Unpack[Overrides],
) -> Reviewed | Applied:
    """Find images that deserve a second look: labels that are probably wrong, judged by a model of all
    other images; pictures that are there twice; images unlike all others; dark, blurred and odd-sized
    ones. Nothing is trained, and nothing is changed. With `apply`, list or make the moves of files that
    were chosen on the page of an earlier review.

    Args:
        data: A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://),
            hf:NAME on the Hugging Face hub, file.py:function, or digits.
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        named_model: The model, if it is not given by position.
        output: Page to write, which shows these images.
        exclude: Write a list into this file, for `data.exclude` of `vitkit.train` and
            `vitkit.finetune`: the training images whose label is probably wrong, that are duplicates, or
            that cannot be read. Check the list before you use it: each line gives a reason.
        columns: Columns of a table that hold the image and its label. Default: found by their usual
            names.
        groups: Which images belong together, and stay on the same side of every split that vitkit
            makes. auto: images with the same value in `columns.group`; without this column, photographs
            of one burst, which vitkit detects. none: no images. Otherwise the name of a column.
        split_seed: Seed of the test part that is made if the data set has none; give `vitkit.train`
            the same number as `data.split_seed`.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        apply: List that you saved on the page: print which files of the data set, a folder of classes,
            will be moved, and where. No model is needed.
        undo: With `apply`: move the same files back to where they were.
        yes: With `apply`: move the files. Nothing is deleted or replaced: photographs to leave out go to
            the folder DATA-left-out.
        json: Print the findings as JSON, one line each.
        **overrides: What the file of the model does not say, or should be something else: `Overrides`.

    Raises:
        BadSettings: If there is no model, settings do not go together, or a file cannot be written.
        BadData: If the data set cannot be read, or, with `apply`, is not a folder of classes.
        BadWeights: If the model cannot be read, or its features are not finite.
    """
    if apply is not None:
        return _applied(data, apply, undo, yes)
    if undo or yes:
        raise BadSettings("`undo` and `yes` go with `apply=FILE`")

    # What is to be looked at, and by which model
    hints = hints_of(overrides)
    model = _only(model, named_model, data)
    if output.suffix.lower() != ".html":
        raise BadSettings(f"`output` is {output}; give the name of an .html file")
    check_replaceable(output)
    if exclude is not None:
        check_replaceable(exclude)
    splits = splits_at(data, columns, split_seed, groups, True, typed=True)
    if exclude is not None and splits.train is None:
        raise BadData(f"{data} has no training images, so `exclude` could list none")
    classifier = classifier_of(model, replace(hints, channels=None))
    images = next(iter(splits.sources.values()))
    classifier = adapted_to(classifier, hints.channels, images, say)
    classifier = classifier.to(pick_device(device)).for_inference()

    # Look, and write what was seen
    findings, facts = look_through(splits, classifier)
    page = write_review(output, data, splits.sources, findings, facts)
    listed = None
    if exclude is not None:
        # The training images to leave out, each with its reasons
        reasons: dict[int, list[str]] = {}
        for finding in findings:
            if finding.part == "train" and finding.kind in LEFT_OUT:
                reasons.setdefault(finding.index, []).append(f"{finding.kind}: {finding.reason}")
        texts = {index: "; ".join(of_image) for index, of_image in reasons.items()}
        write_list(exclude, splits.train, texts)
        listed = len(reasons)
    reviewed = Reviewed(
        data, model, splits, tuple(findings), tuple(facts), page, listed, exclude, json
    )
    if json:  # standard output is for the JSON alone
        for sentence in reviewed.written():
            say(sentence)
    return reviewed


def _only(first: str | Classifier, second: str | Classifier, data: str) -> str | Classifier:
    """The model that judges, given in one of two places. Raises BadSettings if there is none, or two."""
    models = [model for model in (first, second) if model != ""]
    if not models:
        raise BadSettings(
            f"which model is to look? {step('review', data, MODEL)}; any pre-trained one will do"
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
