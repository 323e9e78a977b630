"""What all verbs that answer images take."""

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.verbs.arguments import (
    IMAGES,
    Device,
    ModelHints,
    ModelOrFile,
    Precision,
    Runtime,
    word_of,
)
from vitkit.weights import Hints

INPUT = "-"  # names come through the standard input


@dataclass(frozen=True)
class Answering:
    """A model and images, and how the answers are computed."""

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
    """Largest number of images, chosen evenly from all, or of those that come the first; 0 is
    all."""
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
    hints: ModelHints = field(default_factory=Hints)


def check_answering(settings: Answering, verb: str) -> None:
    """Raises ValueError for settings that cannot go together, before the model is loaded."""
    from vitkit.prediction import BATCH, check_settings

    check_settings(settings.top, BATCH, settings.workers)
    if not len(settings.images):
        raise ValueError(
            f"there is no image to classify; vitkit {verb} {word_of(settings.model)} IMAGE... "
            "takes files, folders, patterns and data sets, and - for names from the standard input"
        )
    names = [image for image in settings.images if isinstance(image, str)]
    if INPUT in names and len(names) > 1:
        raise ValueError("- reads the names of all images from the standard input: give it alone")
    _check_less_work(settings)


def _check_less_work(settings: Answering) -> None:
    """Raises ValueError for --merge and --exit with what does not go with them."""
    if settings.merge and settings.exit:
        raise ValueError("--merge and --exit are two ways to less work; give one of them")
    if settings.merge < 0:
        raise ValueError(f"--merge is {settings.merge}; it is a number of tokens, from 0 on")
    if not 0 <= settings.exit <= 1:
        raise ValueError(f"--exit is {settings.exit:g}; it is a probability, such as 0.9")
    if not settings.exit:
        if settings.calibrate:
            raise ValueError(f"--calibrate {settings.calibrate} goes with --exit")
        return
    if not settings.calibrate:
        raise ValueError(
            "--exit needs --calibrate DATA: images like those to come, of no matter which classes"
        )
    if settings.runtime not in ("auto", "torch"):
        raise ValueError(
            f"--exit is computed by PyTorch, as how far an image goes depends on the image; leave out "
            f"--runtime {settings.runtime}"
        )
