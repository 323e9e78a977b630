"""Data sets themselves: `vitkit data pack`, `vitkit data stats`."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from vitkit.curate import Packing, Pair, Survey
from vitkit.data import Columns, Source, write_list

SHOWN = 20  # classes whose counts are printed; of more the ends
LISTED = 10  # broken images and duplicates that are printed


@dataclass
class Pack:
    """Write a data set as shards. Killed, it goes on where it was when the same command is given again."""

    source: Annotated[Positional[str], arg(metavar="DATA")]
    """Folder, manifest, parquet files, shards, an address, hf:NAME, or digits."""
    dest: Annotated[Positional[Path], arg(metavar="DEST")]
    """Directory for the shards; classes.txt and left-out.txt lie beside them."""
    packing: Annotated[Packing, arg(name="")] = field(default_factory=Packing)
    columns: Annotated[Columns, arg(name="data.columns")] = field(default_factory=Columns)
    """Which columns of a table hold the image and its label; found by their names unless told."""
    workers: int = -1
    """Processes, each writing a shard; -1 follows the CPU quota."""


@dataclass
class Stats:
    """Sizes, classes, duplicates and broken images of a data set; every image is looked at once."""

    source: Annotated[Positional[str], arg(metavar="DATA")]
    """Folder, manifest, parquet files, shards, an address, hf:NAME, or digits."""
    test: str = ""
    """Another data set, whose test part the training images are compared with as well."""
    exclude: Path | None = None
    """Write the training images that are, nearly, in a test or validation part into this file; see --data.exclude of train."""
    sheet: Path | None = None
    """Draw pairs of near-duplicates into this PNG file."""
    columns: Annotated[Columns, arg(name="data.columns")] = field(default_factory=Columns)
    """Which columns of a table hold the image and its label; found by their names unless told."""
    workers: int = -1
    """Processes that decode images; -1 follows the CPU quota."""
    split_seed: int = 0
    """Of the test part that is made where the data set has none; give train the same, as --data.split-seed."""
    json: bool = False
    """Print everything as one line of JSON."""


def pack(command: Pack) -> int:
    """`vitkit data pack`. Raises KeyboardInterrupt, with a sentence, when it is interrupted."""
    from vitkit.curate import pack
    from vitkit.data import open_parts
    from vitkit.system.machine import cpus

    parts, notes = open_parts(command.source, command.columns)
    for note in notes:
        print(note)
    workers = cpus() if command.workers < 0 else command.workers
    try:
        total = pack(parts, command.dest, command.packing, workers, "packing")
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        raise
    count = sum(map(len, parts.values()))
    print(
        f"{total.written:,} of {count:,} images in {command.dest}, {total.bytes / 1e6:,.1f} MB"
        f"{f'; {total.shrunk:,} made smaller' if total.shrunk else ''}"
    )
    for line in total.left_out[:LISTED]:
        print(f"left out: {line}")
    if total.left_out:
        print(
            f"{len(total.left_out):,} images were left out; all are listed in {command.dest / 'left-out.txt'}"
        )
    target = next(iter(parts.values())).target
    after = f"vitkit train scratch --data.source {command.dest}"
    if target == "number":
        after += " --data.columns.target number"
    if target == "none":
        after = f"vitkit train mae.B16 --data.source {command.dest}"
    print(f"next: {after}")
    return 0


def stats(command: Stats) -> int:
    """`vitkit data stats`. Raises ValueError, before anything is looked at, for what could not be compared or written."""
    from vitkit.curate import survey, twins
    from vitkit.data import open_source, open_splits
    from vitkit.system.machine import cpus
    from vitkit.system.progress import bar

    workers = cpus() if command.workers < 0 else command.workers
    say = partial(print, file=sys.stderr) if command.json else print
    splits = open_splits(command.source, command.columns, command.split_seed)
    parts = {
        name: part
        for name in ("train", "val", "test")
        if (part := getattr(splits, name)) is not None
    }
    if "train" not in parts and (command.exclude or command.test):
        raise ValueError(
            f"{command.source} has no training images to compare, only {', '.join(parts)}; leave out --exclude and --test"
        )
    for path in filter(None, (command.exclude, command.sheet)):
        if not path.absolute().parent.is_dir():
            raise ValueError(
                f"{path} could not be written: there is no folder {path.parent}; make it first"
            )
    compared = [("train", "val"), ("train", "test"), ("val", "test")]
    if command.test:
        other = (
            f"./{command.test}" if command.test in parts else command.test
        )  # a folder may be called "test"
        parts[other] = open_source(command.test)
        compared.append(("train", other))
    surveys = {
        name: survey(part, workers, bar(f"looking at {name}")) for name, part in parts.items()
    }
    pairs = {
        (a, b): twins(surveys[a], surveys[b]) for a, b in compared if a in surveys and b in surveys
    }
    found = _as_json(surveys, pairs, splits.labels)
    if command.json:
        print(json.dumps(found))
    else:
        for note in splits.notes:
            print(note)
        _print(found, [name for name, part in parts.items() if part.labels == splits.labels])
    if command.exclude:
        _write_list(command.exclude, surveys, pairs, say)
    if command.sheet and any(pairs.values()):
        say(f"wrote {_draw(command.sheet, surveys, pairs)}")
    if not command.json:
        _print_next(command, any(twins for (part, _), twins in pairs.items() if part == "train"))
    return 0


Pairs = dict[tuple[str, str], list[Pair]]


def _as_json(surveys: dict[str, Survey], pairs: Pairs, labels: tuple[str, ...]) -> dict:
    from vitkit.curate import class_counts, other_class, same_files

    target = next(iter(surveys.values())).source.target
    found = {"target": target, "classes": list(labels), "parts": {}, "pairs": []}
    for name, one in surveys.items():
        sides = one.sizes[one.good]
        found["parts"][name] = {
            "images": len(one.source),
            "classes": class_counts(one.source),
            "numbers": _three_numbers(one.source),
            "height": _three(sides[:, 0]),
            "width": _three(sides[:, 1]),
            "bytes": int(one.bytes.sum()),
            "formats": dict(one.formats),
            "broken": list(one.bad.values()),
            "same files": [[one.source.name(int(i)) for i in group] for group in same_files(one)],
            "same file, other class": _contradictions(one),
        }
    for (a, b), twins in pairs.items():
        names = surveys[a].source.name, surveys[b].source.name
        found["pairs"].append(
            {
                "parts": [a, b],
                "same": sum(twin.bits < 0 for twin in twins),
                "other class": other_class(surveys[a], surveys[b], twins),
                "pairs": [
                    [names[0](twin.first), names[1](twin.second), twin.bits, twin.count]
                    for twin in twins
                ],
            }
        )
    return found


def _three(values: np.ndarray) -> list[int]:
    """Smallest, median and largest."""
    return (
        [int(values.min()), int(np.median(values)), int(values.max())] if len(values) else [0, 0, 0]
    )


def _three_numbers(source: Source) -> list[float]:
    """Smallest, median and largest of the numbers to predict; empty for other targets."""
    if source.target != "number":
        return []
    values = source.targets
    return [float(value) for value in (values.min(), np.median(values), values.max())]


def _contradictions(one: Survey) -> int:
    """Groups of the same file that have several targets."""
    from vitkit.curate import same_files

    answers = ({one.source.answer(int(i)) for i in group} for group in same_files(one))
    return sum(len(several) > 1 for several in answers)


def _print(found: dict, alike: list[str]) -> None:
    """alike: the parts whose classes are those of the data set."""
    table = Table("", *map(escape, found["parts"]))
    rows = {
        "images": lambda part: f"{part['images']:,}",
        "MB": lambda part: f"{part['bytes'] / 1e6:,.1f}",
        "formats": lambda part: ", ".join(f"{n:,} {kind}" for kind, n in part["formats"].items()),
        "height: least, median, most": lambda part: ", ".join(f"{n:,}" for n in part["height"]),
        "width": lambda part: ", ".join(f"{n:,}" for n in part["width"]),
        "classes that occur": lambda part: (
            f"{sum(n > 0 for n in part['classes']):,} of {len(part['classes']):,}"
        ),
        "images a class: least, most": lambda part: (
            f"{min(part['classes']):,}, {max(part['classes']):,}"
        ),
        "number: least, median, most": lambda part: ", ".join(f"{x:g}" for x in part["numbers"]),
        "broken": lambda part: f"{len(part['broken']):,}",
        "more copies of the same file": lambda part: (
            f"{sum(len(group) - 1 for group in part['same files']):,}"
        ),
        "same file, other class": lambda part: f"{part['same file, other class']:,}",
    }
    if not found["classes"]:
        del rows["classes that occur"], rows["images a class: least, most"]
    if found["target"] != "number":
        del rows["number: least, median, most"]
    if found["target"] in ("none", "number"):
        del rows["same file, other class"]
    for name, text in rows.items():
        table.add_row(name, *(text(part) for part in found["parts"].values()))
    Console().print(table)
    _print_classes(found, alike)
    for name, part in found["parts"].items():
        for sentence in part["broken"][:LISTED]:
            print(f"broken, in {name}: {sentence}")
    for pair in found["pairs"]:
        (a, b), same, near = pair["parts"], pair["same"], len(pair["pairs"]) - pair["same"]
        print(
            f"{a} and {b}: files in both: {same:,}; others of {a} that look like one of {b}: {near:,}"
        )
        for one, other, bits, count in pair["pairs"][:LISTED]:
            more = f" and {count - 1:,} more" if count > 1 else ""
            print(f"  {one} is {'the same as' if bits < 0 else 'like'} {other}{more}")
        if pair["other class"]:
            print(
                f"warning: of another class than what they are like: {pair['other class']:,}; a label is wrong, or these are "
                f"no duplicates: look at them with --sheet FILE"
            )


def _print_classes(found: dict, alike: list[str]) -> None:
    labels = found["classes"]
    if not labels:
        return
    parts = {name: found["parts"][name]["classes"] for name in alike}
    first = next(iter(parts.values()))
    order = sorted(range(len(labels)), key=lambda k: -first[k])
    table = Table("class", *map(escape, parts))
    for k in order if len(order) <= SHOWN else [*order[: SHOWN // 2], -1, *order[-SHOWN // 2 :]]:
        table.add_row(
            *(
                ["..."]
                if k < 0
                else [Text(labels[k]), *(f"{counts[k]:,}" for counts in parts.values())]
            )
        )
    Console().print(table)


def _print_next(command: Stats, doubles: bool) -> None:
    seed = f" --split-seed {command.split_seed}" if command.split_seed else ""
    if command.exclude:
        seed = seed.replace("--", "--data.")
        print(
            f"next: vitkit train RECIPE --data.source {command.source}{seed} --data.exclude {command.exclude}"
        )
    elif doubles:
        again = f"{command.source}{f' --test {command.test}' if command.test else ''}{seed}"
        print(
            f"next: vitkit data stats {again} --exclude FILE lists them for vitkit train --data.exclude FILE"
        )
    else:
        print(f"next: vitkit train scratch --data.source {command.source}")


def _write_list(
    path: Path, surveys: dict[str, Survey], pairs: Pairs, say: Callable[[str], None]
) -> None:
    """Training images that look like one that is held out, each with the first reason."""
    why = {}
    for (part, held), twins in pairs.items():
        for twin in twins if part == "train" else ():
            how = "the same as" if twin.bits < 0 else "like"
            why.setdefault(twin.first, f"{how} {surveys[held].source.name(twin.second)}")
    write_list(path, surveys["train"].source, why)
    say(f"wrote {len(why):,} training images to leave out into {path}")


def _draw(path: Path, surveys: dict[str, Survey], pairs: Pairs) -> Path:
    """Pairs side by side, those first that are least alike."""
    from vitkit.inspection.sheet import Tile, contact_sheet

    every = [
        (twin, surveys[a].source, surveys[b].source)
        for (a, b), found in pairs.items()
        for twin in found
    ]
    tiles = []
    for twin, first, second in sorted(every, key=lambda row: -row[0].bits)[:40]:
        both = _square(first, twin.first), _square(second, twin.second)
        tiles.append(
            Tile(
                np.concatenate(both, axis=1),
                "same file" if twin.bits < 0 else f"{twin.bits} bits differ",
            )
        )
    return contact_sheet(tiles, path)


def _square(source: Source, index: int) -> np.ndarray:
    from vitkit.data import Preprocessing, open_image

    image = Preprocessing(size=(96, 96))(open_image(source[index][0], source.name(index)))
    return image.permute(1, 2, 0).numpy()
