"""`vitkit bench`: how fast a model is on this machine, in every runtime and precision, side by side."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from vitkit.verbs import Model, ModelHints
from vitkit.weights import Hints

if TYPE_CHECKING:
    from vitkit.benching import Contender, Speed
    from vitkit.exporting import Trial
    from vitkit.runtimes import Fastest
    from vitkit.weights import Classifier

WRITTEN = (".json", ".png")


@dataclass
class Bench:
    """Measure how fast a model is on this machine, on the CPU, in every runtime and precision that is
    installed, side by side; and how far each gives the model's answers."""

    model: Model
    data: Annotated[str, arg(metavar="DATA")] = ""
    """Images to compare answers on: the test part of a data set. Default: parts of two photographs
    that come with scikit-learn."""
    calibrate: Annotated[str, arg(metavar="DATA")] = ""
    """Images that int8 is calibrated on, and exits are fitted on, 300 at most. Default: the training
    part of --data; if that has but one part, every second image, and answers are compared on the
    others."""
    batch: tuple[int, ...] = (1, 8, 32)
    """Images of a forward pass, one or several sizes."""
    rounds: int = 5
    """Turns of each runtime, at each size."""
    seconds: float = 0.5
    """What a turn takes."""
    limit: int = 200
    """Largest number of images to compare answers on."""
    runtimes: tuple[Literal["torch", "compiled", "onnx", "openvino"], ...] = (
        "torch",
        "onnx",
        "openvino",
    )
    """What to measure, as far as it is installed. compiled, by torch.compile, takes minutes to begin."""
    precisions: tuple[Literal["float32", "bfloat16", "int8"], ...] = ("float32", "bfloat16", "int8")
    """In which numbers, as far as this machine computes in them."""
    timm: tuple[str, ...] = ()
    """Models of timm's to compare with, such as vit_tiny_patch16_224, as timm computes them."""
    merge: tuple[int, ...] = ()
    """Measure PyTorch with so many tokens merged in every block too, such as 4 8 16: less work, and
    answers that differ a little (docs/export.md)."""
    exit: tuple[float, ...] = ()
    """Measure PyTorch with early exits too, which end the computation of an image when a class has
    such a probability, such as 0.9 0.7."""
    start_up: bool = True
    """Measure processes too: from their start to one answer, and their memory."""
    report: tuple[Path, ...] = ()
    """Files to write: .json for the numbers, .png for a picture of them."""
    json: bool = False
    """Print the numbers as one line of JSON."""
    hints: ModelHints = field(default_factory=Hints)


def bench(command: Bench) -> int:
    """`vitkit bench`."""
    check(command)
    from vitkit.benching import MEASURED, Plan, measure
    from vitkit.commands.bench_output import facts, print_table, recommendation, write
    from vitkit.exporting import prepared_images, sample_trial, trial_on
    from vitkit.runtimes import check_less_work
    from vitkit.weights import load_as

    _say_left_out(command)

    # The model, and what can compute it
    classifier = load_as(command.model, command.hints)
    check_less_work(classifier, command.merge, command.exit)
    trial = sample_trial()
    if command.data:
        calibrate = None
        if "int8" in command.precisions or command.exit:
            calibrate = command.calibrate
        trial = trial_on(command.data, classifier.labels, command.limit, calibrate)
    measured = trial.items[:: -(-len(trial.items) // MEASURED)]
    images, _ = prepared_images(classifier.preprocessing, measured)
    plan = Plan(command.batch, command.rounds, command.seconds)
    with TemporaryDirectory(prefix="vitkit-bench-") as folder:
        found = list(_contenders(command, classifier, trial, Path(folder)))
        turns = len(found) * len(plan.batches) * plan.rounds
        _say(f"measuring in turns, {turns * plan.seconds:.0f} seconds or more")
        speeds = measure(found, images, plan)
        kept = _remember(classifier, found, speeds)
        if command.start_up:
            _say("starting processes")
            speeds = _with_starts(command, found, speeds)

    # What was found
    written = facts(command, found, speeds, trial)
    for path in command.report:
        write(path, written, found, speeds)
    if command.json:
        print(json.dumps(written))
        return 0
    print_table(command, found, speeds)
    for path in command.report:
        print(f"wrote {path}")
    for fastest in kept:
        print(f"remembered for --runtime auto: {fastest}")
    print(recommendation(command, found, speeds, classifier.activation))
    return 0


def check(command: Bench) -> None:
    """Raises ValueError for numbers that cannot be, and for files that cannot be written."""
    from vitkit.system.storage.files import check_replaceable

    if not command.batch or min(command.batch) < 1:
        raise ValueError(f"--batch is {command.batch}; it is one or more numbers of images")
    if command.rounds < 1 or not command.seconds > 0 or command.limit < 1:
        raise ValueError(
            f"--rounds is {command.rounds}, --seconds {command.seconds} and --limit {command.limit}; "
            "each must be more than 0"
        )
    if command.calibrate and not command.data:
        raise ValueError("--calibrate goes with --data, images to compare answers on")
    for path in command.report:
        if path.suffix.lower() not in WRITTEN:
            raise ValueError(f"--report is {path}; give the name of a .json or a .png file")
        check_replaceable(path)


def _say_left_out(command: Bench) -> None:
    """Say what is not measured because a package is missing."""
    from vitkit.exporting import Export, missing_packages
    from vitkit.runtimes import PACKAGES

    missing = set()
    for library in command.runtimes:
        for precision in command.precisions:
            if library in PACKAGES:
                missing.update(missing_packages(Export(library, precision)))
    if missing:
        names = " and ".join(sorted(missing))
        _say(f"what needs {names} is left out: pip install 'vitkit[export]'")


def _say(text: str) -> None:
    """What is being done, for who waits."""
    print(text, file=sys.stderr, flush=True)


def _contenders(
    command: Bench, classifier: "Classifier", trial: "Trial", folder: Path
) -> "Iterator[Contender]":
    """All that are measured, each said when it is ready."""
    from vitkit.benching import contenders, of_timm, with_less_work

    for name in command.timm:  # a name that is wrong is found at once
        yield of_timm(name, classifier)
    own = contenders(classifier, trial, folder, command.runtimes, command.precisions)
    less = with_less_work(classifier, trial, command.merge, command.exit)
    for contender in chain(own, less):
        _say(f"{contender.name}: {contender.agreement}")
        yield contender


def _remember(
    classifier: "Classifier", found: "Sequence[Contender]", speeds: "Sequence[Speed]"
) -> "list[Fastest]":
    """Keep which is the fastest, for --runtime auto. What cannot be written is only not kept."""
    from vitkit.benching import remember

    try:
        return remember(classifier, found, speeds)
    except OSError as error:
        _say(f"which is the fastest is not remembered: {error}")
        return []


def _with_starts(
    command: Bench, found: "Sequence[Contender]", speeds: "Sequence[Speed]"
) -> "list[Speed]":
    """The same, with what a process takes. PyTorch's are started with the model itself."""
    from dataclasses import replace

    from vitkit.benching import starts

    models = {}
    for i, contender in enumerate(found):
        if contender.file is not None:
            models[i] = contender.file
        elif contender.name == "PyTorch float32":
            models[i] = command.model
    measured = dict(zip(models, starts(list(models.values())), strict=True))
    speeds = list(speeds)
    for i, (seconds, megabytes) in measured.items():
        speeds[i] = replace(speeds[i], start=seconds, megabytes=megabytes)
    return speeds
