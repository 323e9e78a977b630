"""`vitkit predict`: the likeliest classes of images, as they come; printed, written to a file, filed
in folders, or drawn."""

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vitkit.commands.predict_checks import INPUT, check
from vitkit.commands.predict_images import answers_of, items_of
from vitkit.commands.predict_parts import predict_parts
from vitkit.commands.predict_runtime import runtime_of
from vitkit.verbs import IMAGES, Device, ModelHints, ModelOrFile, Precision, Runtime
from vitkit.weights import Hints

if TYPE_CHECKING:
    from vitkit.commands.predict_results import Results
    from vitkit.prediction import Answered


@dataclass
class Predict:
    """Print the likeliest classes of images, with their probabilities."""

    model: ModelOrFile
    images: Annotated[
        Positional[tuple[str, ...]],
        arg(
            metavar="IMAGE...",
            help=f"{IMAGES}, or digits; - reads names from the standard input, one a line.",
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
    exit: float = 0.0
    """Answer an image after half of the blocks, or later, as soon as a class has this probability: less
    work, and answers that differ a little. vitkit bench --exit measures how much."""
    calibrate: Annotated[str, arg(metavar="DATA")] = ""
    """Images that --exit is fitted on, 300 at most, such as those of the training; their classes do
    not matter."""
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
    runtime = runtime_of(command)

    # The images, and their answers as they come
    items = None
    if not (command.watch or command.images == (INPUT,)):
        items = items_of(command, runtime.labels)
    if command.parts is not None:
        return predict_parts(command, runtime, items)
    batches = answers_of(command, runtime, items)
    progress = Progress(None if items is None else len(items))
    with Results(command, runtime, progress) as results, closing(batches):
        if command.watch:
            with suppress(KeyboardInterrupt), _termination_as_interrupt():
                _take(batches, results)
        else:
            _take(batches, results)
    results.conclude()
    return int(progress.unreadable > 0)


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
