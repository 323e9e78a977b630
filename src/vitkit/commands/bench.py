"""`vitkit bench`: how fast a model is on this machine, in every runtime and precision, side by side."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from vitkit.commands.arguments import Model, ModelHints
from vitkit.system.text import as_word
from vitkit.weights.said import Hints

if TYPE_CHECKING:
    from vitkit.deploy.bench import Speed
    from vitkit.deploy.contenders import Contender
    from vitkit.deploy.trial import Trial
    from vitkit.weights import Classifier

WRITTEN = (".json", ".png")


@dataclass
class Bench:
    """Measure how fast a model is on this machine, on the CPU, in every runtime and precision that is
    installed, side by side; and how far each gives the model's answers."""

    model: Model
    data: Annotated[str, arg(metavar="DATA")] = ""
    """Images to compare answers on: the test part of a data set. int8 is calibrated on its training
    part, or on every second image. Default: parts of two photographs that come with scikit-learn."""
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
    from vitkit.deploy.bench import Plan, measure
    from vitkit.deploy.trial import sample_trial, trial_on
    from vitkit.weights import load_as

    # The model, and what can compute it
    classifier = load_as(command.model, command.hints)
    trial = sample_trial()
    if command.data:
        calibrate = None
        if "int8" in command.precisions:
            calibrate = ""
        trial = trial_on(command.data, classifier.labels, command.limit, calibrate)
    plan = Plan(command.batch, command.rounds, command.seconds)
    with TemporaryDirectory(prefix="vitkit-bench-") as folder:
        found = list(_contenders(command, classifier, trial, Path(folder)))
        turns = len(found) * len(plan.batches) * plan.rounds
        _say(f"measuring in turns, {turns * plan.seconds:.0f} seconds or more")
        speeds = measure(found, classifier.preprocessing, plan)
        if command.start_up:
            _say("starting processes")
            speeds = _with_starts(command, found, speeds)

    # What was found
    written = _facts(command, found, speeds, trial)
    for path in command.report:
        _write(path, written, found, speeds)
    if command.json:
        print(json.dumps(written))
        return 0
    _print(command, found, speeds)
    for path in command.report:
        print(f"wrote {path}")
    print(_recommendation(command, found, speeds))
    return 0


def check(command: Bench) -> None:
    """Raises ValueError for numbers that cannot be, and for files that cannot be written."""
    from vitkit.system.files import check_replaceable

    if not command.batch or min(command.batch) < 1:
        raise ValueError(f"--batch is {command.batch}; it is one or more numbers of images")
    if command.rounds < 1 or not command.seconds > 0 or command.limit < 1:
        raise ValueError(
            f"--rounds is {command.rounds}, --seconds {command.seconds} and --limit {command.limit}; "
            "each must be more than 0"
        )
    for path in command.report:
        if path.suffix.lower() not in WRITTEN:
            raise ValueError(f"--report is {path}; give the name of a .json or a .png file")
        check_replaceable(path)


def _say(text: str) -> None:
    """What is being done, for who waits."""
    print(text, file=sys.stderr, flush=True)


def _contenders(
    command: Bench, classifier: "Classifier", trial: "Trial", folder: Path
) -> "Iterator[Contender]":
    """All that are measured, each said when it is ready."""
    from vitkit.deploy.contenders import contenders, of_timm

    for name in command.timm:  # a name that is wrong is found at once
        yield of_timm(name, classifier)
    for contender in contenders(classifier, trial, folder, command.runtimes, command.precisions):
        _say(f"{contender.name}: {contender.agreement}")
        yield contender


def _with_starts(
    command: Bench, found: "Sequence[Contender]", speeds: "Sequence[Speed]"
) -> "list[Speed]":
    """The same, with what a process takes. PyTorch's are started with the model itself."""
    from dataclasses import replace

    from vitkit.deploy.bench import starts

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


def _print(command: Bench, found: "Sequence[Contender]", speeds: "Sequence[Speed]") -> None:
    """A table, a row for each."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("runtime")
    for batch in command.batch:
        table.add_column(f"images/s\nbatch {batch}", justify="right")
    heads = ("p50 ms", "p95 ms", "start s", "MB", "same", "largest\ndifference", "accuracy")
    for head in heads:
        table.add_column(head, justify="right")
    for contender, speed in zip(found, speeds, strict=True):
        table.add_row(contender.name, *_cells(command, contender, speed))
    Console(width=120, highlight=False).print(table)


def _cells(command: Bench, contender: "Contender", speed: "Speed") -> list[str]:
    """The numbers of a row; "" where there is none."""
    cells = [f"{speed.images_per_second[batch]:.1f}" for batch in command.batch]
    cells += ["", "", "", ""]
    if speed.p50 is not None:
        cells[-4] = f"{speed.p50:.1f}"
        cells[-3] = f"{speed.p95:.1f}"
    if speed.start is not None:
        cells[-2] = f"{speed.start:.2f}"
    if speed.megabytes is not None:
        cells[-1] = f"{speed.megabytes:.0f}"
    agreement = contender.agreement
    if agreement is None:
        return [*cells, "", "", ""]
    accuracy = ""
    if agreement.accuracy is not None:
        accuracy = f"{agreement.accuracy:.1%}"
    return [*cells, f"{agreement.same:.1%}", f"{agreement.largest:.1e}", accuracy]


def _recommendation(command: Bench, found: "Sequence[Contender]", speeds: "Sequence[Speed]") -> str:
    """Which to take, and how."""
    from vitkit.deploy.agreement import LEAST

    batch = max(command.batch)
    exact = next(i for i, contender in enumerate(found) if contender.name == "PyTorch float32")
    base = speeds[exact].images_per_second[batch]
    fit = []
    for i, contender in enumerate(found):
        agreement = contender.agreement
        if agreement is not None and agreement.same >= LEAST[contender.precision]:
            fit.append(i)
    lines = []
    same = [i for i in fit if found[i].precision == "float32"]
    best_of = {}
    for title, among in (("the fastest with the same answers", same), ("the fastest", fit)):
        best = max(among, key=lambda i: speeds[i].images_per_second[batch])
        if best not in best_of.values():
            best_of[title] = best
    for title, best in best_of.items():
        ratio = speeds[best].images_per_second[batch] / base
        line = f"{title}: {found[best].name}, {ratio:.2f} times PyTorch float32 at batch {batch}"
        if found[best].file is not None:
            ending = found[best].file.suffix
            words = f"vitkit export {as_word(command.model)} -o model{ending}"
            if found[best].precision != "float32":
                words += f" --precision {found[best].precision} --data DATA"
            line += f"; {words}"
        lines.append(line)
    if command.data == "":
        lines.append(
            "these answers are to parts of two photographs: --data DATA compares on your own"
        )
    return "\n".join(lines)


def _facts(
    command: Bench, found: "Sequence[Contender]", speeds: "Sequence[Speed]", trial: "Trial"
) -> dict:
    """All that was measured, and on what."""
    from vitkit.deploy.exported import threads
    from vitkit.system.files import MARK
    from vitkit.system.matmul import processor
    from vitkit.system.private import public

    rows = []
    for contender, speed in zip(found, speeds, strict=True):
        agreement = contender.agreement
        if agreement is not None:
            agreement = asdict(agreement)
        rows.append(
            {
                "library": contender.library,
                "precision": contender.precision,
                **speed.to_json(),
                "agreement": agreement,
            }
        )
    load = None
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
    return {
        "made": MARK,
        "model": public(command.model),
        "images": public(trial.name),
        "machine": processor(),
        "threads": threads(),
        "load": load,
        "date": date.today().isoformat(),
        "rounds": command.rounds,
        "seconds": command.seconds,
        "runtimes": rows,
    }


def _write(
    path: Path, written: dict, found: "Sequence[Contender]", speeds: "Sequence[Speed]"
) -> None:
    """The numbers, or a picture of them."""
    from vitkit.system.files import write_json

    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".json":
        write_json(path, written)
        return
    from vitkit.deploy.bench_figure import draw

    draw(path, [contender.name for contender in found], speeds)
