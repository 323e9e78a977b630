"""Using a model: `vitkit evaluate`, `vitkit predict`."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.data import Columns, Source
from vitkit.weights import Classifier


@dataclass
class Evaluate:
    """Accuracy of a model on images with labels; every example counts exactly once."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A run, a model directory, a file of weights in any format, or the name of a published model."""
    data: Annotated[Positional[str], arg(metavar="DATA")]
    """Folder, manifest, parquet file, or digits."""
    split: Literal["train", "val", "test"] | None = None
    """Which part of the data; unless told its test part, else its val part, else what the run set aside, else all."""
    columns: Annotated[Columns, arg(name="data.columns")] = field(default_factory=Columns)
    """Which columns of a table hold the image and its label; found by their names unless told."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """What a broken image does: stop, or be left out and said."""
    batch: int = 64
    """Images a forward pass."""
    workers: int = -1
    """Processes that decode images; -1 follows the CPU quota."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the matrix products."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    json: bool = False
    """Print the metrics as one line of JSON."""


@dataclass
class Predict:
    """The likeliest classes of images, with their probabilities."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A run, a model directory, a file of weights in any format, or the name of a published model."""
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGE")]
    """Image files, folders of images, data sets (their test part), or digits."""
    top: int = 5
    """Classes to name for each image."""
    limit: int = 0
    """At most so many images, spread evenly; 0 is all."""
    sheet: Path | None = None
    """Draw images and predictions into this PNG file."""
    device: str = "auto"
    """cpu, cuda, cuda:1 or mps; auto takes the best there is."""
    json: bool = False
    """Print one line of JSON an image."""


def evaluate(command: Evaluate) -> int:
    """`vitkit evaluate`."""
    from rich.progress import track

    from vitkit.data import check_images, default_workers, eval_batches, subset
    from vitkit.evaluate import accuracy, align
    from vitkit.system.machine import autocast, cpus, pick_device
    from vitkit.weights import load

    place, found = pick_device(command.device), with_head(load(command.model), command.model)
    source, part = _part(command, found.origin)
    if command.on_bad_image == "skip":
        bad = dict(check_images(source, cpus()))
        source = subset(source, [i for i in range(len(source)) if i not in bad])
        for sentence in bad.values():
            print(f"left out: {sentence}", file=sys.stderr)
    numbers = align(source.labels, found.labels)
    workers = default_workers(source) if command.workers < 0 else command.workers
    batches = eval_batches(source, found.preprocessing, command.batch, workers)
    shown = track(batches, "evaluating", console=Console(stderr=True), transient=True)
    aligned = (batch._replace(labels=numbers[batch.labels]) for batch in shown)
    with autocast(place, command.precision):
        metrics = dict(
            accuracy(aligned, found.preprocessing.normalise, place)(found.model.to(place))
        )
    if command.json:
        print(json.dumps(metrics))
        return 0
    print(f"{command.model} on {part}")
    table = Table("metric", "value")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.2%}" if name.startswith("top") else f"{value:,.4g}")
    Console().print(table)
    print(f"next: vitkit predict {command.model} IMAGE...")
    return 0


def _part(command: Evaluate, origin: dict) -> tuple[Source, str]:
    """The images to evaluate on, and what to call them: never those that the model was trained on, where that is known."""
    from vitkit.data import open_source, open_splits

    trained_on = origin.get("data", "")
    paths = Path(command.data), Path(trained_on)
    if trained_on and (
        command.data == trained_on
        or (paths[0].exists() and paths[0].resolve() == paths[1].resolve())
    ):
        splits = open_splits(command.data, command.columns, origin.get("split_seed", 0))
        chosen = getattr(splits, command.split or "test")
        if splits.made and chosen:
            return (
                chosen,
                f"{len(chosen):,} images of {command.data}, the {command.split or 'test'} part of its own training",
            )
    source = open_source(command.data, command.columns, command.split)
    return source, f"{len(source):,} images of {command.data}"


def predict(command: Predict) -> int:
    """`vitkit predict`; 1 where an image was broken, after all the others are done."""
    from rich.progress import track

    from vitkit import deploy
    from vitkit.data import open_image
    from vitkit.inspection.sheet import Tile, contact_sheet
    from vitkit.weights import load

    found = with_head(load(command.model), command.model)
    items = spread(list(deploy.pictures(command.images)), command.limit)
    asked = deploy.predict(found, items, command.top, device=command.device)
    answers = list(
        track(asked, "predicting", len(items), console=Console(stderr=True), transient=True)
    )
    table = Table("prediction", "probability", "image", "next")
    table.columns[2].overflow = table.columns[3].overflow = "fold"
    for answer in answers:
        if command.json:
            print(
                json.dumps(
                    answer._asdict()
                    if answer.error is None
                    else {"name": answer.name, "error": answer.error}
                )
            )
        elif answer.error is None:
            others = zip(answer.labels[1:], answer.probabilities[1:], strict=True)
            rest = ", ".join(f"{name} {share:.1%}" for name, share in others if share >= 0.001)
            wrong = f" (is {answer.truth})" if answer.truth not in (None, answer.labels[0]) else ""
            row = (answer.labels[0] + wrong, f"{answer.probabilities[0]:.1%}", answer.name, rest)
            table.add_row(*map(escape, row))
    if table.row_count:
        Console().print(table)
    for answer in answers:
        if answer.error is not None and not command.json:
            print(f"not classified: {answer.error}", file=sys.stderr)
    good = [
        (item, answer) for item, answer in zip(items, answers, strict=True) if answer.error is None
    ]
    if command.sheet and good:
        tiles = [
            Tile(
                open_image(item.read(), item.name).pixels(),
                f"{answer.labels[0]} {answer.probabilities[0]:.0%}",
                None if answer.truth is None else answer.truth == answer.labels[0],
            )
            for item, answer in good
        ]
        print(
            f"wrote {contact_sheet(tiles, command.sheet)}",
            file=sys.stderr if command.json else sys.stdout,
        )
    if not command.json:
        print(
            f"next: vitkit predict {command.model} IMAGE... --json, or --sheet FILE.png"
            if not command.sheet
            else f"next: open {command.sheet}"
        )
    return 0 if len(good) == len(answers) else 1


def with_head(found: Classifier, name: str) -> Classifier:
    if not found.labels:
        raise ValueError(
            f"{name} has no classification head, so it names no classes; vitkit show {name} says what it is"
        )
    return found


def spread(items: list, limit: int) -> list:
    """At most `limit` of them, evenly; 0 is all."""
    return (
        [items[i * len(items) // limit] for i in range(limit)] if 0 < limit < len(items) else items
    )
