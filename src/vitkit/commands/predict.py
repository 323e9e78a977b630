"""`vitkit predict`: the likeliest classes of images, as they come; printed, written to a file, filed
in folders, or drawn."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.commands.arguments import (
    Device,
    Model,
    ModelHints,
    Precision,
    Runtime,
    pick_precision,
)
from vitkit.commands.predict_parts import check_parts, predict_parts
from vitkit.commands.runtime import any_runtime_of_file, runtime_of_file, runtime_of_model
from vitkit.deploy.exported import is_exported, takes_pictures
from vitkit.system.files import check_can_be_made, check_replaceable
from vitkit.system.machine import pick_device
from vitkit.system.text import as_word, printable
from vitkit.weights.said import Hints

if TYPE_CHECKING:
    from vitkit.commands.predict_results import Results
    from vitkit.deploy.items import Item, Pictures
    from vitkit.deploy.predict import Answered
    from vitkit.deploy.runtimes import Runtime as AnyRuntime
    from vitkit.weights import Classifier

INPUT = "-"  # names come through the standard input


@dataclass
class Predict:
    """Print the likeliest classes of images, with their probabilities."""

    model: Model
    images: Annotated[
        Positional[tuple[str, ...]],
        arg(
            metavar="IMAGE...",
            help="Image files, folders of images, patterns ('**/*.jpg'), web addresses, data sets "
            "(their test part), or digits; - reads names from the standard input, one a line.",
        ),
    ]
    top: int = 5
    """Classes to name for each image."""
    limit: int = 0
    """Largest number of images, chosen evenly from all, or with - and --watch the first; 0 is
    all."""
    to: Path | None = None
    """Write a row for each image into this file, instead of printing it: .csv, .jsonl or
    .parquet."""
    sort_into: Path | None = None
    """File the photographs in this folder, each in the folder of its class. The originals stay where
    they are, and nothing is replaced."""
    sort_by: Literal["link", "copy"] = "link"
    """How they are filed: as hard links, which take no space and are the same files (copies, where
    no link can be made), or as copies."""
    sure: float = 0.5
    """Probability that --sort-into needs; photographs with less go to its folder "unsure"."""
    attention: Path | None = None
    """Draw into this folder, for each image, what the model looked at."""
    sheet: Path | None = None
    """Draw images and predictions into this PNG file."""
    parts: Path | None = None
    """Write the answers to very many images into this folder, as parquet files of some thousand rows.
    The same command goes on after any end, and several processes share the work: by torchrun, or
    --shard."""
    shard: str = ""
    """With --parts, which of several processes this is: 1/4 to 4/4."""
    watch: bool = False
    """Classify what is in a folder and what arrives there, until Ctrl-C or SIGTERM."""
    workers: int = -1
    """Processes that read and decode images; -1 follows the CPU quota."""
    merge: int = 0
    """Merge so many tokens in every block: less work, and answers that differ a little. vitkit bench
    --merge measures how much."""
    runtime: Runtime = "auto"
    precision: Precision = "auto"
    device: Device = "auto"
    json: bool = False
    """Print one line of JSON per image."""
    hints: ModelHints = field(default_factory=Hints)


def predict(command: Predict) -> int:
    """`vitkit predict`. Returns 1 if an image was broken; the others are classified all the
    same."""
    from vitkit.commands.predict_progress import Progress
    from vitkit.commands.predict_results import Results

    # What cannot be done is refused before the model is loaded
    check(command)

    # The model
    runtime = _runtime(command)

    # The images, and their answers as they come
    items = None
    if not (command.watch or command.images == (INPUT,)):
        items = _items(command, runtime.labels)
    if command.parts is not None:
        return predict_parts(command, runtime, items)
    batches = _answers(command, runtime, items)
    progress = Progress(None if items is None else len(items))
    with Results(command, runtime, progress) as results, closing(batches):
        if command.watch:
            with suppress(KeyboardInterrupt), _termination_as_interrupt():
                _take(batches, results)
        else:
            _take(batches, results)
    results.conclude()
    return int(progress.unreadable > 0)


def _runtime(command: Predict) -> "AnyRuntime":
    """What computes the answers. An exported file needs no PyTorch."""
    if is_exported(command.model):
        if command.attention is not None:
            raise ValueError(
                f"--attention draws what a model looks at, and {command.model} gives its answers alone; "
                "give the model that it was exported from"
            )
        if command.merge:
            raise ValueError(
                f"--merge changes what a model computes, and {command.model} is an exported file; give "
                "the model"
            )
        open_runtime = any_runtime_of_file
        if command.parts is not None:  # in batches
            open_runtime = runtime_of_file
        return open_runtime(
            command.model, command.hints, command.runtime, command.precision, command.device
        )
    from vitkit.weights import load_as

    classifier = with_head(load_as(command.model, command.hints), command.model)
    if command.merge:
        classifier = _merging(command, classifier)
    device = pick_device(command.device)
    precision = pick_precision(command.precision, device)
    if command.attention is None:
        return runtime_of_model(classifier, command.runtime, precision, command.device)
    from vitkit.deploy.looks import Looking
    from vitkit.deploy.pytorch import eager

    if command.runtime not in ("auto", "torch"):
        raise ValueError(
            f"--attention is computed by PyTorch; leave out --runtime {command.runtime}"
        )
    return Looking(eager(classifier, device, precision))


def _merging(command: Predict, classifier: "Classifier") -> "Classifier":
    """The model with tokens merged, which the standard error says."""
    from vitkit.deploy.less import merging

    if command.attention is not None:
        raise ValueError("--attention draws the whole model's; leave out --merge")
    print(
        f"{command.merge} tokens are merged in every block, so the answers differ a little from the "
        f"model's; vitkit bench {as_word(command.model)} --merge {command.merge} --data DATA says how much",
        file=sys.stderr,
    )
    return merging(classifier, command.merge)


def _take(batches: "Iterator[Answered]", results: "Results") -> None:
    """Do with the answers what the command says, as they come."""
    for answered in batches:
        results.take(answered)


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """A block that SIGTERM, as a service gets it, ends as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check(command: Predict) -> None:
    """Raises ValueError for settings that cannot go together, and for files that cannot be
    written."""
    from vitkit.deploy.predict import BATCH, check_settings

    check_parts(command)
    check_settings(command.top, BATCH, command.workers)
    if not command.images:
        raise ValueError(
            f"there is no image to classify; vitkit predict {as_word(command.model)} IMAGE... "
            "takes files, folders, patterns and data sets, and - for names from the standard input"
        )
    if INPUT in command.images and len(command.images) > 1:
        raise ValueError("- reads the names of all images from the standard input: give it alone")
    if command.watch and (len(command.images) > 1 or not Path(command.images[0]).is_dir()):
        raise ValueError(
            f"--watch waits for what arrives in one folder; got {' '.join(command.images)}"
        )
    if command.sheet:
        check_sheet(command.sheet)
    if command.to:
        from vitkit.deploy.rows import check_rows_file

        check_rows_file(command.to)
    if command.json and command.to:
        raise ValueError(f"--json prints what --to {command.to} writes; give one of them")
    for flag, folder in (("--sort-into", command.sort_into), ("--attention", command.attention)):
        if folder is not None:
            _check_folder(flag, folder, command.images)


def _check_folder(flag: str, folder: Path, images: tuple[str, ...]) -> None:
    """Raises ValueError for a folder to write to that is none, or is one of the images'."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{flag} is {folder}, which is a file; give a folder")
    for image in images:
        if Path(image).is_dir() and Path(image).resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{flag} is {folder}, and the images are in {image}: what is written there would be "
                "taken for images; give another folder, such as sorted"
            )
    check_can_be_made(folder / "photograph")


def check_sheet(file: Path) -> None:
    """Raises ValueError for a path that a contact sheet cannot be written to."""
    if file.suffix.lower() != ".png":
        raise ValueError(f"--sheet is {file}; give the name of a PNG file, such as {file}.png")
    check_replaceable(file)


def with_head(classifier: "Classifier", name: str) -> "Classifier":
    """The same classifier. Raises ValueError if it has no head."""
    if not classifier.labels:
        raise ValueError(
            f"{name} has no classification head, so it names no classes; "
            f"vitkit show {name} says what it is"
        )
    return classifier


# The images


def _written_to(command: Predict) -> list[Path]:
    """The folders whose images are no images to classify: the command writes them."""
    return [folder for folder in (command.sort_into, command.attention) if folder is not None]


def _items(command: Predict, labels: Sequence[str]) -> "Pictures | list[Item]":
    """The images that the command names."""
    from vitkit.deploy import pictures

    items = pictures(command.images, labels, _written_to(command))
    if command.sort_into is not None and not items.are_files():
        raise ValueError(
            f"--sort-into files photographs that are files of this machine; among "
            f"{printable(' '.join(command.images))} are others"
        )
    return spread(items, command.limit)


def spread(items: "Pictures", limit: int) -> "Pictures | list[Item]":
    """At most `limit` of the items, evenly spread; 0 is all."""
    if not 0 < limit < len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]


def _answers(
    command: Predict, runtime: "AnyRuntime", items: "Pictures | list[Item] | None"
) -> "Iterator[Answered]":
    """The answers to the images, in batches; to those that come while it runs, if there are no
    items."""
    from vitkit.deploy.predict import BATCH, answers
    from vitkit.deploy.prepare import from_sequence, from_stream

    batch = BATCH
    if takes_pictures(runtime):
        batch = 1
    if items is not None:
        batches = from_sequence(items, runtime.preprocessing, batch, command.workers)
    else:
        batches = from_stream(_coming(command, batch), runtime.preprocessing, command.workers)
    return answers(runtime, batches, command.top)


def _coming(command: Predict, batch: int) -> "Iterator[list[Item]]":
    """The images whose names come while they are classified, in lists, some of them empty."""
    from vitkit.deploy.arrivals import arrivals, names_from
    from vitkit.deploy.items import items_of

    # Their names
    leave_out = _written_to(command)
    if command.watch:
        (folder,) = command.images
        print(
            f"watching {printable(folder)}: what is there and what arrives; Ctrl-C ends",
            file=sys.stderr,
        )
        names = arrivals(folder, batch, leave_out)
    else:
        names = names_from(sys.stdin.fileno(), batch)

    # Their items; the name of a folder is that of many
    count = 0
    for some in names:
        items = chain.from_iterable(items_of(name, leave_out) for name in some)
        chunk = []
        for item in items:
            chunk.append(item)
            count += 1
            if len(chunk) == batch or count == command.limit:
                yield chunk
                chunk = []
            if count == command.limit:
                return
        yield chunk
