"""The function that prints the statistics of a data set, and its problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json import dumps as to_json
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vitkit.curation.duplicates import Pair
from vitkit.curation.functions.mask_tables import mask_tables
from vitkit.curation.functions.next_step import training_step
from vitkit.curation.masks import PATCHES, survey_masks
from vitkit.curation.statistics import (
    Survey,
    class_counts,
    count_other_class,
    identical_files,
    near_duplicates,
    survey,
)
from vitkit.data import (
    Columns,
    Preprocessing,
    Source,
    Splits,
    one_per_cpu,
    open_image,
    picture_for_people,
    reading_arguments,
    source_at,
    splits_at,
    splits_with_masks,
    write_list,
)
from vitkit.inspection import Tile, contact_sheet
from vitkit.system.console.messages import as_spelled, say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import printable, printable_name
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.functions.arguments import check_sheet, status_of
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import FILE, step
from vitkit.system.functions.types import DataLike, Messages, PathLike
from vitkit.system.storage.files import check_replaceable

DRAWN = 40  # pairs of near-duplicates on a sheet
Pairs = dict[tuple[str, str], list[Pair]]
"""For the names of two parts: pairs of an image in the first and its near-duplicate in the second."""


@dataclass(frozen=True, repr=False)
class Statistics(Rows):
    """The statistics of a data set, and its problems."""

    splits: Splits
    """The data set."""
    description: dict
    """All statistics as plain values: "target", "classes", "parts" and "pairs"."""
    same_classes: tuple[str, ...]
    """The parts that have the data set's classes; the test part of another data set may have others."""
    notes: tuple[str, ...]
    """Sentences about the files that were written."""
    next_step: str
    """The command to run next."""
    json: bool = False
    """Whether the output is JSON."""
    ok_if_unreadable: bool = False
    """Whether the exit status is 0 even if images could not be read."""

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read, or masks not be used."""
        broken = sum(len(part["broken"]) for part in self.description["parts"].values())
        masks = self.description.get("masks", {"parts": {}})
        broken += sum(part["unusable"] for part in masks["parts"].values())
        return status_of(broken, self.ok_if_unreadable)

    def rows(self) -> list[dict]:
        """A row for each part: the number of images, their sizes, and the problems."""
        rows = []
        for name, part in self.description["parts"].items():
            numbers = {
                key: value for key, value in part.items() if not isinstance(value, dict | list)
            }
            counts = {"broken": len(part["broken"]), "same files": len(part["same files"])}
            rows.append({"part": name, **numbers, **counts})
        return rows

    def shown(self) -> Iterator[str | Table]:
        """Tables and sentences, or JSON."""
        if self.json:
            yield to_json(self.description)
            return
        splits = self.splits
        notes = filter(None, (*splits.notes, splits.unlearned))
        for note in notes:
            if "masks" not in self.description or "unlabelled" not in note:
                yield printable(note)
        yield from tables(self.description, self.same_classes)
        if "masks" in self.description:
            yield from mask_tables(self.description["masks"])
        yield from self.notes
        yield f"next: {self.next_step}"


@public
def stats(
    source: DataLike,
    *,
    test: DataLike = "",
    exclude: PathLike | None = None,
    sheet: PathLike | None = None,
    columns: Columns = Columns(),
    workers: int = -1,
    groups: Literal["auto", "none"] | str = "auto",
    split_seed: int = 0,
    masks: DataLike = "",
    legend: PathLike | None = None,
    ignore: int | None = None,
    tokens: int = PATCHES,
    json: bool = False,
    ok_if_unreadable: bool = False,
    **messages: Unpack[Messages],
) -> Statistics:
    """Print sizes, classes, duplicates and broken images of a data set. Every image is read once. With `masks`,
    also the classes of pixels, and everything for which training would refuse these masks.

    Args:
        source: A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://),
            hf:NAME on the Hugging Face hub, file.py:function, or digits.
        test: Another data set, whose test part is also compared with the training images.
        exclude: Write a list of the training images that have a near-duplicate in a test or validation
            part into this file, for `data.exclude` of `vitkit.train`.
        sheet: Draw pairs of near-duplicates into this PNG file.
        columns: Columns of a table that hold the image and its label. Default: found by their usual
            names.
        workers: Processes that decode images; -1 follows the CPU quota.
        groups: Which images belong together, and stay on the same side of every split that vitkit
            makes. auto: images with the same value in `columns.group`; without this column, photographs
            of one burst, which vitkit detects. none: no images. Otherwise the name of a column.
        split_seed: Seed of the test part that is made if the data set has none; give `vitkit.train`
            the same number as `data.split_seed`.
        masks: Masks of the images: a folder of files with the images' names, by its path or by its name in the
            folder of the images or of each part; a COCO file (.json); or the column of the data set that holds
            them.
        legend: Text or JSON file that says which value or colour of a mask is which class. Default: as for
            `vitkit.finetune`.
        ignore: Value of a mask whose pixels do not count. 255 is one unless a class has it.
        tokens: With `masks`: number of patches that a model reads of an image. Regions of fewer pixels than a
            patch are counted.
        json: Print everything as one line of JSON.
        ok_if_unreadable: Let the command end with the exit status 0, and not 3, if images could not be
            read, or masks not be used; they are still named.
        **messages: Where messages go.

    Raises:
        BadData: If a data set cannot be read, or has no training images to compare.
        BadSettings: If a file cannot be written.
    """
    # Find the parts
    if masks:
        if test:
            raise BadSettings("`test` is for images without masks; leave it out")
        if tokens < 1:
            raise BadSettings(f"`tokens` is {tokens}; it is a number of patches, at least 1")
        splits = splits_with_masks(source, masks, columns, split_seed, groups, True)
    elif legend is not None or ignore is not None or tokens != PATCHES:
        raise BadSettings(
            "`legend`, `ignore` and `tokens` are about masks: give these with `masks`"
        )
    else:
        splits = splits_at(source, columns, split_seed, groups, True, typed=True)
    parts = _parts(splits, test)
    if "train" not in parts and (exclude or test):
        own = [name for name in parts if name in ("val", "test")]
        raise BadData(
            f"{source} has no training images to compare, only {', '.join(own)}; "
            "leave out `exclude` and `test`"
        )
    if exclude:
        check_replaceable(exclude)
    if sheet:
        check_sheet(sheet)

    # Measure every image, and compare the parts
    if workers < 0:
        workers = one_per_cpu()
    of_masks = None
    if masks:
        of_masks = survey_masks(parts, source, masks, legend, ignore, tokens, workers)
    surveys = {}
    for name, part in parts.items():
        surveys[name] = survey(part, workers, bar(f"reading {name}"))
    pairs = {}
    for first, second in _compared(list(parts)):
        pairs[first, second] = near_duplicates(surveys[first], surveys[second])

    # Write the requested files
    notes = []
    if exclude:
        count = _write_list(exclude, surveys, pairs)
        notes.append(f"wrote {count:,} training images to leave out into {exclude}")
    if sheet and any(pairs.values()):
        notes.append(f"wrote {_draw(sheet, surveys, pairs)}")
    if json:  # standard output contains only the JSON
        for note in notes:
            say(note)
    description = describe(surveys, pairs, splits.labels)
    if of_masks is not None:
        description["masks"] = of_masks.to_json()
    same_classes = tuple(name for name, part in parts.items() if part.labels == splits.labels)

    # Choose the next command
    reading = reading_arguments(columns, groups, split_seed)
    images = len(next(iter(parts.values())))
    if of_masks is not None:
        next_step = step(
            "finetune",
            source,
            masks=masks,
            legend=legend,
            ignore=ignore,
            columns=columns,
            data__exclude=exclude,
        )
        if of_masks.problems or any(part.problems for part in of_masks.parts.values()):
            next_step = f"correct what the warnings name, and then {next_step}"
    elif exclude:
        next_step = training_step(source, splits.target_kind, images, **reading, exclude=exclude)
    elif any(duplicates for (part, _), duplicates in pairs.items() if part == "train"):
        to_list = step("stats", source, test=test, **reading, exclude=FILE)
        to_train = training_step(source, splits.target_kind, images, **reading, exclude=FILE)
        next_step = f"{to_list} lists them for {to_train}"
    else:
        next_step = training_step(source, splits.target_kind, images, **reading)
    return Statistics(
        splits, description, same_classes, tuple(notes), next_step, json, ok_if_unreadable
    )


def _parts(splits: Splits, test: str) -> dict[str, Source]:
    """The parts of the data set by name, and the test part of another data set, if given, under the name
    of that data set."""
    parts = splits.sources
    if test:
        name = test
        if name in parts:  # a folder may be called "test"
            name = f"./{name}"
        parts[name] = source_at(test, typed=True)
    return parts


def _compared(names: list[str]) -> list[tuple[str, str]]:
    """The pairs of parts to compare: those of the data set with each other, and train with the test part
    of the other data set."""
    own = ("train", "val", "test")
    pairs = [("train", "val"), ("train", "test"), ("val", "test")]
    pairs += [("train", name) for name in names if name not in own]
    return [(first, second) for first, second in pairs if first in names and second in names]


def describe(surveys: dict[str, Survey], pairs: Pairs, labels: tuple[str, ...]) -> dict:
    """All statistics as plain values."""
    described_pairs = []
    for (first, second), duplicates in pairs.items():
        described = _describe_pairs(surveys[first], surveys[second], duplicates)
        described_pairs.append({"parts": [first, second], **described})
    return {
        "target": next(iter(surveys.values())).source.target_kind,
        "classes": list(labels),
        "parts": {name: _describe_part(survey) for name, survey in surveys.items()},
        "pairs": described_pairs,
    }


def _describe_part(survey: Survey) -> dict:
    """The statistics of one part."""
    source = survey.source
    sides = survey.sizes[survey.good]

    # Groups of identical files, and how many of them have different classes
    same_files = []
    contradictions = 0
    for group in identical_files(survey):
        examples = list(map(int, group))
        same_files.append([source.name(i) for i in examples])
        if len({source.answer(i) for i in examples}) > 1:
            contradictions += 1

    numbers = []
    if source.target_kind == "number":
        numbers = _three(source.target_array, float)
    return {
        "images": len(source),
        "classes": class_counts(source),
        "numbers": numbers,
        "height": _three(sides[:, 0]),
        "width": _three(sides[:, 1]),
        "bytes": int(survey.bytes.sum()),
        "formats": dict(survey.formats),
        "broken": list(map(as_spelled, survey.bad.values())),
        "same files": same_files,
        "same file, other class": contradictions,
    }


def _describe_pairs(first: Survey, second: Survey, duplicates: list[Pair]) -> dict:
    """The duplicates between two parts."""
    pairs = []
    for pair in duplicates:
        name = first.source.name(pair.first)
        other = second.source.name(pair.second)
        pairs.append([name, other, pair.bits, pair.count])
    return {
        "same": sum(pair.bits < 0 for pair in duplicates),
        "other class": count_other_class(first, second, duplicates),
        "pairs": pairs,
    }


def _three(values: np.ndarray, kind: type = int) -> list:
    """Minimum, median and maximum; zeros if there are no values."""
    if not len(values):
        return [0, 0, 0]
    return [kind(values.min()), kind(np.median(values)), kind(values.max())]


def _write_list(path: Path, surveys: dict[str, Survey], pairs: Pairs) -> int:
    """Write a list of the training images that look like a held-out image, each with the reason. Returns
    their number."""
    reasons: dict[int, str] = {}
    for (part, held_out), duplicates in pairs.items():
        if part != "train":
            continue
        for pair in duplicates:
            name = surveys[held_out].source.name(pair.second)
            # An image may look like several; the first reason is enough
            reasons.setdefault(pair.first, f"{same_or_like(pair.bits)} {name}")
    write_list(path, surveys["train"].source, reasons)
    return len(reasons)


def _draw(path: Path, surveys: dict[str, Survey], pairs: Pairs) -> Path:
    """Draw pairs side by side, the least similar ones first, since these are most in need of a check."""
    rows: list[tuple[Pair, Source, Source]] = []
    for names, duplicates in pairs.items():
        sources = [surveys[name].source for name in names]
        rows += [(pair, sources[0], sources[1]) for pair in duplicates]
    rows.sort(key=lambda row: -row[0].bits)
    tiles = []
    for pair, first, second in rows[:DRAWN]:
        both = [_square(first, pair.first), _square(second, pair.second)]
        caption = f"{pair.bits} bits differ"
        if pair.bits < 0:
            caption = "same file"
        tiles.append(Tile(np.concatenate(both, axis=1), caption))
    return contact_sheet(tiles, path)


def _square(source: Source, index: int) -> np.ndarray:
    """An image as a square, uint8 (96, 96, 3)."""
    image = open_image(source[index][0], source.name(index))
    photograph = open_image(picture_for_people(image), image.name)
    return Preprocessing(size=(96, 96))(photograph).permute(1, 2, 0).numpy()


SHOWN = 20  # classes whose counts are printed; if there are more, the largest and the smallest
LISTED = 10  # broken images and duplicates that are printed


def tables(description: dict, same_classes: Sequence[str]) -> Iterator[str | Table]:
    """The description as tables and sentences. same_classes: the parts that have the data set's classes."""
    yield _parts_table(description)
    if description["classes"]:
        yield _classes_table(description, same_classes)
    for name, part in description["parts"].items():
        for sentence in part["broken"][:LISTED]:
            yield printable(f"broken, in {name}: {sentence}")
    for pair in description["pairs"]:
        yield from _pairs(pair)


def _parts_table(description: dict) -> Table:
    """A table with a column for every part."""
    parts = description["parts"]
    columns = [_column(part, description) for part in parts.values()]
    table = Table("", *map(escape, parts))
    for title in columns[0]:
        table.add_row(title, *(column[title] for column in columns))
    return table


def _column(part: dict, description: dict) -> dict[str, str]:
    """The values of a part, by titles, which are the same for all parts."""
    target = description["target"]
    copies = sum(len(group) - 1 for group in part["same files"])
    formats = [f"{count:,} {kind}" for kind, count in part["formats"].items()]
    column = {
        "images": f"{part['images']:,}",
        "MB": f"{part['bytes'] / 1e6:,.1f}",
        "formats": ", ".join(formats),
        "height: least, median, most": ", ".join(f"{side:,}" for side in part["height"]),
        "width": ", ".join(f"{side:,}" for side in part["width"]),
    }
    if description["classes"]:
        counts = part["classes"] or [0]  # another data set's part may have no classes
        occurring = sum(count > 0 for count in counts)
        column["classes that occur"] = f"{occurring:,} of {len(part['classes']):,}"
        column["images per class: least, most"] = f"{min(counts):,}, {max(counts):,}"
    if target == "number":
        column["number: least, median, most"] = ", ".join(f"{x:g}" for x in part["numbers"])
    column["broken"] = f"{len(part['broken']):,}"
    column["extra copies of the same file"] = f"{copies:,}"
    if target not in ("none", "number"):
        column["same file, other class"] = f"{part['same file, other class']:,}"
    return column


def _classes_table(description: dict, same_classes: Sequence[str]) -> Table:
    """A table of the number of images per class, the largest first; if there are many classes, of the
    largest and the smallest."""
    labels = description["classes"]
    counts_of = {name: description["parts"][name]["classes"] for name in same_classes}
    first_part = next(iter(counts_of.values()))
    by_size = sorted(range(len(labels)), key=lambda k: -first_part[k])

    table = Table("class", *map(escape, counts_of))
    for rank, k in enumerate(by_size):
        is_large = rank < SHOWN // 2
        is_small = rank >= len(by_size) - SHOWN // 2
        if is_large or is_small:
            numbers = [f"{counts[k]:,}" for counts in counts_of.values()]
            table.add_row(Text(printable_name(labels[k])), *numbers)
        elif rank == SHOWN // 2:
            table.add_row("...")
    return table


def _pairs(pair: dict) -> Iterator[str]:
    """The duplicates between two parts: their number, and the names of the first."""
    first, second = pair["parts"]
    same = pair["same"]
    similar = len(pair["pairs"]) - same
    yield (
        f"{first} and {second}: files in both: {same:,}; "
        f"near-duplicates in {first} of an image in {second}: {similar:,}"
    )
    for name, other, bits, count in pair["pairs"][:LISTED]:
        sentence = f"{name} is {same_or_like(bits)} {other}"
        if count > 1:
            sentence += f" and {count - 1:,} more"
        yield f"  {printable(sentence)}"
    if pair["other class"]:
        yield (
            f"warning: pairs with different classes: {pair['other class']:,}; a label is wrong, or "
            "they are not duplicates: look at them with `sheet=FILE`"
        )


def same_or_like(bits: int) -> str:
    """The similarity of two images in words. bits: as in a Pair."""
    if bits < 0:
        return "the same as"
    return "like"
