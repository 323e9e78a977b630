"""Data sets themselves: `vitkit data pack`, `vitkit data stats`."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.data import Columns, Packing, Source, Survey, Twin

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
    json: bool = False
    """Print everything as one line of JSON."""


def pack(command: Pack) -> int:
    """`vitkit data pack`. Raises KeyboardInterrupt, with a sentence, when it is interrupted."""
    from vitkit.data import bar, open_parts, pack
    from vitkit.machine import cpus

    parts, _, notes = open_parts(command.source, command.columns)
    for note in notes:
        print(note)
    workers = cpus() if command.workers < 0 else command.workers
    try:
        total = pack(parts, command.dest, command.packing, workers, bar("packing"))
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
        print(f"{len(total.left_out):,} images were left out; all are listed in {command.dest / 'left-out.txt'}")
    print(f"next: vitkit train scratch --data.source {command.dest}")
    return 0


def stats(command: Stats) -> int:
    """`vitkit data stats`."""
    from vitkit.data import bar, open_parts, open_source, survey, twins
    from vitkit.machine import cpus

    workers = cpus() if command.workers < 0 else command.workers
    parts, labels, notes = open_parts(command.source, command.columns)
    surveys = {name: survey(part, workers, bar(f"looking at {name or 'images'}")) for name, part in parts.items()}
    train = "train" if "train" in surveys else ""
    pairs = {(a, b): twins(surveys[a], surveys[b]) for a, b in (("train", "val"), ("train", "test"), ("val", "test"))
             if a in surveys and b in surveys}  # fmt: skip
    if command.test:
        surveys[command.test] = survey(open_source(command.test), workers, bar(f"looking at {command.test}"))
        pairs[train, command.test] = twins(surveys[train], surveys[command.test])
    if command.json:
        print(json.dumps(_as_json(surveys, pairs, labels)))
    else:
        for note in notes:
            print(note)
        _print(surveys, pairs, labels)
    drop = sorted({(twin.first, held) for (part, held), found in pairs.items() if part == train for twin in found})
    if command.exclude:
        _write_list(command.exclude, train, surveys, pairs)
    if command.sheet and any(pairs.values()):
        _draw(command.sheet, surveys, pairs)
    if not command.json:
        if command.exclude:
            print(f"next: vitkit train RECIPE --data.source {command.source} --data.exclude {command.exclude}")
        elif drop:
            print(
                f"next: vitkit data stats {command.source} --exclude FILE lists them for vitkit train --data.exclude FILE"
            )
        else:
            print(f"next: vitkit train scratch --data.source {command.source}")
    return 0


Pairs = dict[tuple[str, str], list[Twin]]


def _as_json(surveys: dict[str, Survey], pairs: Pairs, labels: tuple[str, ...]) -> dict:
    from vitkit.data import same_files

    found = {"classes": list(labels), "parts": {}, "pairs": []}
    for name, one in surveys.items():
        sides = one.sizes[one.good]
        found["parts"][name or "images"] = {
            "images": len(one.source),
            "classes": np.bincount(one.source.targets, minlength=len(one.source.labels)).tolist(),
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
        listed = [[names[0](twin.first), names[1](twin.second), twin.bits] for twin in twins]
        found["pairs"].append(
            {"parts": [a or "images", b], "same": sum(twin.bits < 0 for twin in twins), "pairs": listed}
        )
    return found


def _three(values: np.ndarray) -> list[int]:
    """Smallest, median and largest."""
    return [int(values.min()), int(np.median(values)), int(values.max())] if len(values) else [0, 0, 0]


def _contradictions(one: Survey) -> int:
    """Groups of the same file that are of several classes."""
    from vitkit.data import same_files

    return sum(len(set(one.source.targets[group])) > 1 for group in same_files(one))


def _print(surveys: dict[str, Survey], pairs: Pairs, labels: tuple[str, ...]) -> None:
    found = _as_json(surveys, pairs, labels)
    table = Table("", *found["parts"])
    rows = {
        "images": lambda part: f"{part['images']:,}",
        "MB": lambda part: f"{part['bytes'] / 1e6:,.1f}",
        "formats": lambda part: ", ".join(f"{n:,} {kind}" for kind, n in part["formats"].items()),
        "height: least, median, most": lambda part: ", ".join(f"{n:,}" for n in part["height"]),
        "width": lambda part: ", ".join(f"{n:,}" for n in part["width"]),
        "classes that occur": lambda part: f"{sum(n > 0 for n in part['classes']):,} of {len(part['classes']):,}",
        "images a class: least, most": lambda part: f"{min(part['classes']):,}, {max(part['classes']):,}",
        "broken": lambda part: f"{len(part['broken']):,}",
        "more copies of the same file": lambda part: f"{sum(len(group) - 1 for group in part['same files']):,}",
        "same file, other class": lambda part: f"{part['same file, other class']:,}",
    }
    for name, text in rows.items():
        table.add_row(name, *(text(part) for part in found["parts"].values()))
    Console().print(table)
    _print_classes(found, labels)
    for name, part in found["parts"].items():
        for sentence in part["broken"][:LISTED]:
            print(f"broken, in {name}: {sentence}")
    for pair in found["pairs"]:
        (a, b), same, near = pair["parts"], pair["same"], len(pair["pairs"]) - pair["same"]
        print(f"{a} and {b} share {same:,} files; {near:,} more pairs are near-duplicates")
        for one, other, bits in pair["pairs"][:LISTED]:
            print(f"  {one} is {'the same as' if bits < 0 else 'like'} {other}")


def _print_classes(found: dict, labels: tuple[str, ...]) -> None:
    parts = {name: part for name, part in found["parts"].items() if len(part["classes"]) == len(labels)}
    first = next(iter(parts.values()))["classes"]
    order = sorted(range(len(labels)), key=lambda k: -first[k])
    table = Table("class", *parts)
    for k in order if len(order) <= SHOWN else [*order[: SHOWN // 2], -1, *order[-SHOWN // 2 :]]:
        table.add_row(*(["..."] if k < 0 else [labels[k], *(f"{part['classes'][k]:,}" for part in parts.values())]))
    Console().print(table)


def _write_list(path: Path, train: str, surveys: dict[str, Survey], pairs: Pairs) -> None:
    """Training images that look like one that is held out: a name a line, and after a tab why."""
    name, lines = surveys[train].source.name, {}
    for (part, held), found in pairs.items():
        for twin in found if part == train else ():
            why = "the same as" if twin.bits < 0 else "like"
            lines.setdefault(twin.first, f"{name(twin.first)}\t{why} {surveys[held].source.name(twin.second)}")
    path.write_text("".join(f"{lines[i]}\n" for i in sorted(lines)), "utf-8")
    print(f"wrote {len(lines):,} training images to leave out into {path}")


def _draw(path: Path, surveys: dict[str, Survey], pairs: Pairs) -> None:
    """Pairs side by side, those first that are least alike."""
    from vitkit.inspection.sheet import Tile, contact_sheet

    every = [(twin, surveys[a].source, surveys[b].source) for (a, b), found in pairs.items() for twin in found]
    tiles = []
    for twin, first, second in sorted(every, key=lambda row: -row[0].bits)[:40]:
        both = _square(first, twin.first), _square(second, twin.second)
        tiles.append(Tile(np.concatenate(both, axis=1), "same file" if twin.bits < 0 else f"{twin.bits} bits differ"))
    print(f"wrote {contact_sheet(tiles, path)}")


def _square(source: Source, index: int) -> np.ndarray:
    from vitkit.data import Preprocessing, open_image

    image = Preprocessing(size=(96, 96))(open_image(source[index][0], source.name(index)))
    return image.permute(1, 2, 0).numpy()
