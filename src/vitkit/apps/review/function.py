"""`vitkit data review`: find images that deserve a second look, and apply the user's decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from json import dumps as to_json
from pathlib import Path
from typing import Any, Literal, Unpack

from rich.markup import escape
from rich.table import Table

from vitkit.apps.review.masks import ReviewedMasks, review_masks
from vitkit.curation import Move, move
from vitkit.curation.corrections import moves, moves_back, read_corrections
from vitkit.data import Columns, Splits, reading_arguments, splits_at, write_list
from vitkit.evaluation import Finding, look_through, write_review
from vitkit.evaluation.reports.review import KINDS
from vitkit.recipes.channels import adapted_to
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, printable, printable_name
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import MODEL, step
from vitkit.system.functions.types import DataLike, DeviceLike, PathLike
from vitkit.system.machine import pick_device
from vitkit.system.storage.files import check_replaceable
from vitkit.weights import Classifier, ModelLike, Overrides, classifier_of, hints_of

SHOWN = 10  # largest number of probable label errors in the terminal
LEFT_OUT = ("label", "duplicate", "unreadable")  # kinds of findings that `exclude` lists


@dataclass(frozen=True, repr=False)
class Reviewed(Rows):
    """Images that deserve a second look."""

    data: str
    """The data set, as given by the caller."""
    model: str | Classifier
    """The model whose features are used, as given by the caller."""
    splits: Splits
    """The opened data set."""
    findings: tuple[Finding, ...]
    facts: tuple[str, ...]
    """Sentences about what was examined."""
    path: Path
    """The page with the images."""
    listed: int | None
    """Number of training images in the exclusion list; None if no list was written."""
    exclude: Path | None = None
    """That list."""
    json: bool = False
    """Whether the result is printed as JSON lines."""
    reading: dict[str, Any] = field(default_factory=dict)
    """The arguments of a call that reads the data set in the same way: `reading_arguments`."""

    def rows(self) -> list[dict]:
        """One row per finding."""
        return [asdict(finding) for finding in self.findings]

    def shown(self) -> Iterator[str | Table]:
        """The number of findings of each kind, and the path of the page; or JSON, one line per
        finding."""
        if self.json:
            for finding in self.findings:
                yield to_json(asdict(finding))
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
            reading = {name: value for name, value in self.reading.items() if name != "columns"}
            of_data = {f"data__{name}": value for name, value in reading.items()}
            training = step(
                "finetune",
                self.model,
                self.data,
                columns=self.reading.get("columns"),
                **of_data,
                data__exclude=self.exclude,
            )
            yield f"next: look through {as_word(self.exclude)}, then {training}"

    def written(self) -> Iterator[str]:
        """Sentences about the written files."""
        yield f"wrote {self.path}"
        if self.listed is not None:
            yield f"wrote {counted(self.listed, 'training image')} into {self.exclude}"


@dataclass(frozen=True, repr=False)
class Applied(Rows):
    """The file moves that a saved list requests."""

    data: str
    """The folder with one folder per class."""
    path: Path
    """The list."""
    moves: tuple[Move, ...]
    """Each file with its new path."""
    undo: bool
    """Whether the moves undo earlier ones."""
    moved: bool
    """Whether the files were moved; otherwise they were only listed."""

    def rows(self) -> list[dict]:
        """One row per file."""
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
    """List the file moves that a saved list requests or, with `yes`, make them."""
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
    masks: DataLike = "",
    legend: PathLike | None = None,
    ignore: int | None = None,
    **overrides: Unpack[Overrides],
) -> Reviewed | Applied | ReviewedMasks:
    """Find images that deserve a second look: labels that are probably wrong, judged by a model of all
    other images; pictures that are there twice; images unlike all others; dark, blurred and odd-sized
    ones. Nothing is trained, and nothing is changed. With `apply`, list or make the moves of files that
    were chosen on the page of an earlier review. With `masks`, find masks that are probably wrong, image by
    image and region by region.

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
        masks: Masks of the images: a folder of files with the images' names, by its path or by its name in the
            folder of the images or of each part; a COCO file (.json); or the column of DATA that holds
            them. Then masks are reviewed, and nothing else.
        legend: Text or JSON file that says which value or colour of a mask is which class. Default: as for
            `vitkit.finetune`.
        ignore: Value of a mask whose pixels do not count. 255 is one unless a class has it.
        **overrides: What the file of the model does not say, or should be something else: `Overrides`.

    Raises:
        BadSettings: If there is no model, settings do not go together, or a file cannot be written.
        BadData: If the data set cannot be read, or, with `apply`, is not a folder of classes.
        BadWeights: If the model cannot be read, or its features are not finite.
    """
    if apply is not None:
        if masks or legend is not None or ignore is not None:
            raise BadSettings(
                "`apply` moves images with one class each; leave out `masks`, `legend` and `ignore`"
            )
        return _applied(data, apply, undo, yes)
    if undo or yes:
        raise BadSettings("`undo` and `yes` go with `apply=FILE`")

    # The data set and the model
    hints = hints_of(overrides)
    model = _only(model, named_model, data)
    if output.suffix.lower() != ".html":
        raise BadSettings(f"`output` is {output}; give the name of an .html file")
    check_replaceable(output)
    if not masks and (legend is not None or ignore is not None):
        raise BadSettings("`legend` and `ignore` are about masks: give these with `masks`")
    if masks:
        if exclude is not None:
            raise BadSettings(
                "`exclude` cannot list masks: they are reviewed in an order, and nothing says from which one on they "
                "are right; leave it out, look at the page, and write the names of the images to leave out into a file "
                "for `data.exclude`, one a line"
            )
        classifier = classifier_of(model, hints)
        device_of_model = pick_device(device)
        return review_masks(
            data, classifier, masks, legend, ignore, output, columns, groups, split_seed,
            device_of_model, json,
        )  # fmt: skip
    if exclude is not None:
        check_replaceable(exclude)
    splits = splits_at(data, columns, split_seed, groups, True, typed=True)
    if exclude is not None and splits.train is None:
        raise BadData(f"{data} has no training images, so `exclude` could list none")
    classifier = classifier_of(model, replace(hints, channels=None))
    images = next(iter(splits.sources.values()))
    classifier = adapted_to(classifier, hints.channels, images, say)
    classifier = classifier.to(pick_device(device)).for_inference()

    # Review the images, and write the results
    findings, facts = look_through(splits, classifier)
    page = write_review(output, data, splits.sources, findings, facts)
    listed = None
    if exclude is not None:
        assert splits.train is not None  # checked above
        # The training images to leave out, with the reasons
        reasons: dict[int, list[str]] = {}
        for finding in findings:
            if finding.part == "train" and finding.kind in LEFT_OUT:
                reasons.setdefault(finding.index, []).append(f"{finding.kind}: {finding.reason}")
        texts = {index: "; ".join(of_image) for index, of_image in reasons.items()}
        write_list(exclude, splits.train, texts)
        listed = len(reasons)
    reviewed = Reviewed(
        data, model, splits, tuple(findings), tuple(facts), page, listed, exclude, json,
        reading_arguments(columns, groups, split_seed),
    )  # fmt: skip
    if json:  # standard output carries JSON only
        for sentence in reviewed.written():
            say(sentence)
    return reviewed


def _only(first: str | Classifier, second: str | Classifier, data: str) -> str | Classifier:
    """The model, given in one of two places. Raises BadSettings if there is none, or if there are two."""
    models = [model for model in (first, second) if model != ""]
    if not models:
        raise BadSettings(
            f"which model is to look? {step('review', data, MODEL)}; any pre-trained one will do"
        )
    if len(models) == 2 and models[0] != models[1]:
        raise BadSettings(f"{models[0]} and {models[1]} are two models; give only one")
    return models[0]


def _tables(findings: Sequence[Finding]) -> Iterator[Table]:
    """Tables of the number of findings by kind, and of the most probable label errors."""
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
