"""`vitkit export`: a model as a file for another program, tried on real images."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vitkit.system.console.text import as_word, counted
from vitkit.verbs import Model, ModelHints
from vitkit.weights import Hints

ENDINGS = {".onnx": "onnx", ".xml": "openvino", ".pt2": "torch"}


@dataclass
class ExportModel:
    """Write a model as a file that needs no vitkit and no Python, and measure on real images that it
    answers as the model does. A file that does not is not written."""

    model: Model
    output: Annotated[Path, arg(aliases=["-o"])]
    """File to write: .onnx, .xml (with a .bin beside it) or .pt2. What was measured goes to
    FILE.json."""
    to: Literal["onnx", "openvino", "torch"] | None = None
    """For ONNX Runtime and all that read ONNX, for OpenVINO, or a program of torch.export. Default:
    what the file's ending says."""
    precision: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    """Numbers of the weights. float16 and bfloat16 halve the file; with bfloat16 OpenVINO also computes
    in it, and with int8 in int8."""
    preprocessing: bool = False
    """Put the preprocessing inside: pictures of any size go in, uint8 (batch, height, width, 3), and
    probabilities come out. vitkit prepares images faster itself, in other processes: its own commands
    are quicker with files without it."""
    merge: int = 0
    """Merge so many tokens in every block: less work, and answers that differ a little. The file is
    held to the bounds of int8."""
    data: Annotated[str, arg(metavar="DATA")] = ""
    """Images to try the file on: the test part of a data set. Default: parts of two photographs that
    come with scikit-learn."""
    calibrate: Annotated[str, arg(metavar="DATA")] = ""
    """int8 by fixed ranges, which these images give, 300 at most: faster in OpenVINO than by the ranges
    of each image, and somewhat less exact. ONNX Runtime needs it, and small models may not pass then;
    its default is the training part of --data, and if that has but one part, every second image, and
    the file is tried on the others."""
    limit: int = 500
    """Largest number of images to try the file on, spread evenly."""
    agreement: float | None = None
    """Least share of the images with the model's own answer. Default: 0.99, 0.95 for bfloat16, 0.9
    for int8; and what the other answers cost is bounded too (docs/export.md). 0 accepts anything."""
    hints: ModelHints = field(default_factory=Hints)


def export(command: ExportModel) -> int:
    """`vitkit export`. Raises ValueError, and writes nothing, if the file falls short."""
    # What is wanted
    to = command.to or ENDINGS.get(command.output.suffix.lower())
    if to is None:
        raise ValueError(
            f"--output is {command.output}; give the name of a file that ends in "
            f"{', '.join(ENDINGS)}, or --to"
        )
    if command.limit < 1:
        raise ValueError(f"--limit is {command.limit}; it is a number of images, at least 1")
    if command.calibrate and not (command.data and command.precision == "int8"):
        raise ValueError("--calibrate goes with --precision int8, and --data to try the file on")

    from vitkit.exporting import Export, check, needs_calibration, sample_trial, size_of, trial_on
    from vitkit.exporting import export as write
    from vitkit.models import tokens_left
    from vitkit.weights import load_as

    wanted = Export(
        to,
        command.precision,
        command.preprocessing,
        calibrated=bool(command.calibrate),
        merge=command.merge,
        least=command.agreement,
    )
    classifier = load_as(command.model, command.hints)
    check(classifier, command.output, wanted)
    trial = sample_trial()
    if command.data:
        calibrate = None
        if needs_calibration(wanted):
            calibrate = command.calibrate
        trial = trial_on(command.data, classifier.labels, command.limit, calibrate)

    # Write it, and say what was written
    tried = counted(len(trial.items), "image")
    print(f"exporting; then the file is tried on {tried}", file=sys.stderr, flush=True)
    agreement = write(classifier, command.output, wanted, trial)
    size = size_of(command.output)
    print(f"wrote {command.output}: {size / 1e6:,.1f} MB, {command.precision}")
    if wanted.merge:
        left = tokens_left(classifier.model.config, wanted.merge)
        print(
            f"{counted(wanted.merge, 'token')} at most merged in every block, {left:,} left in the last; "
            "compared with the whole model:"
        )
    print(f"on {trial.name}: {agreement}")
    if needs_calibration(wanted):
        calibrated = counted(len(trial.for_calibration), "image")
        print(f"calibrated on {calibrated} of {command.calibrate or trial.name}")
    if not command.data:
        print("these say little of your own images: --data DATA measures on them")
    if classifier.unknown is not None:
        print("left out: the limits for unknown images, which a model directory keeps")
    print(f"wrote {command.output}.json: what was measured")
    print(_next(command, to))
    return 0


def _next(command: ExportModel, to: str) -> str:
    """What to do with the file."""
    name = as_word(command.output)
    if to == "torch":
        return f"next: torch.export.load({str(command.output)!r}).module()(images), in Python"
    return f"next: vitkit predict {name} IMAGE..., without PyTorch"
