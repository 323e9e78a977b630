"""`vitkit bench`: speed of a model on this machine, in every runtime and precision."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from itertools import chain
from json import dumps as to_json
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np

from vitkit.apps.bench.figures import draw
from vitkit.apps.bench.output import recommendation, tables
from vitkit.data import of_one_size
from vitkit.exporting import (
    Implementation,
    RuntimeSpeed,
    Trial,
    Turns,
    isolated_files,
    measure,
    measure_starts,
    of_exported,
    remember,
    sample_trial,
    trial_on,
    with_less_work,
)
from vitkit.exporting.speed.candidates import implementations, of_timm
from vitkit.exporting.speed.isolated import OpenFile
from vitkit.exporting.speed.measuring import MEASURED, PHOTOGRAPH
from vitkit.prediction import check_less_work, prepared_images
from vitkit.runtimes import (
    Export,
    FastestRuntime,
    is_exported,
    missing_packages,
    takes_pictures,
)
from vitkit.runtimes.exported import threads
from vitkit.runtimes.fastest import VERSIONED
from vitkit.runtimes.given import check_file_settings, report_differences
from vitkit.runtimes.libraries import readers_of
from vitkit.runtimes.pytorch import of_file
from vitkit.system.console.messages import say
from vitkit.system.errors import BadSettings, VitkitError, WorkerDied
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, step
from vitkit.system.functions.types import DataLike, Several, SeveralPaths
from vitkit.system.machine import processor
from vitkit.system.storage import private
from vitkit.system.storage.files import MARK, check_replaceable, write_json
from vitkit.weights import (
    Classifier,
    Hints,
    ModelLike,
    Overrides,
    classifier_with_head,
    hints_of,
    save,
)

WRITTEN = (".json", ".png")


Library = Literal["torch", "compiled", "onnx", "openvino"]
Precision = Literal["float32", "bfloat16", "int8"]
Command = Literal["predict", "segment"]


@dataclass(frozen=True, repr=False)
class Benchmark(Rows):
    """The speed of a model on this machine, in every runtime and precision."""

    classifier: Classifier
    """The model, or an exported file that computes one."""
    implementations: tuple[Implementation, ...]
    """The measured candidates, each with its agreement with the model."""
    speeds: tuple[RuntimeSpeed, ...]
    """The speed of each candidate, in the same order."""
    facts: dict
    """All measurements and their conditions, as plain values."""
    remembered: tuple[FastestRuntime, ...]
    """The runtimes that runtime "auto" uses from now on."""
    model: str | Classifier
    """The model, as given by the caller."""
    of_samples: bool
    """Whether predictions are compared on crops of two photographs, because no images were given."""
    report: tuple[Path, ...] = ()
    """The written files."""
    json: bool = False
    """Whether the result is printed as JSON."""
    segments: bool = False
    """Whether the model is an exported file that classifies every pixel."""

    def rows(self) -> list[dict]:
        """One row per runtime and precision."""
        rows = []
        for values in self.facts["runtimes"]:
            row: dict[str, Any] = {}
            for name, value in values.items():
                if isinstance(value, dict):
                    row |= {f"{name}.{key}": each for key, each in value.items()}
                else:
                    row[name] = value
            rows.append(row)
        return rows

    def shown(self) -> Iterator[str]:
        """A table, the written files, and a recommendation; or JSON."""
        if self.json:
            yield to_json(self.facts)
            return
        yield from tables(self.implementations, self.speeds)
        for path in self.report:
            yield f"wrote {path}"
        for fastest in self.remembered:
            yield f"remembered for `runtime='auto'`: {fastest}"
        if _is_file(self.model):
            if self.segments:
                yield f"next: {step('evaluate', self.model, DATA, masks='masks/')}, for its IoU"
                return
            evaluating = step("evaluate", self.model, DATA)
            yield f"next: {evaluating}, for its accuracy; `against=MODEL` compares answers"
            return
        activation = self.classifier.activation
        yield recommendation(self.model, self.implementations, self.speeds, activation)
        if self.of_samples:
            yield "these answers are to parts of two photographs: `data=DATA` compares on your own"


@public
def bench(
    model: ModelLike,
    *,
    data: DataLike = "",
    calibrate: DataLike = "",
    batch: Several[int] = (1, 8, 32),
    rounds: int = 5,
    seconds: float = 0.5,
    limit: int = 200,
    runtimes: Several[Library] = ("torch", "onnx", "openvino"),
    precisions: Several[Precision] = ("float32", "bfloat16", "int8"),
    timm: Several[str] = (),
    merge: Several[int] = (),
    exit: Several[float] = (),
    start_up: bool = True,
    report: SeveralPaths = (),
    json: bool = False,
    **overrides: Unpack[Overrides],
) -> Benchmark:
    """Measure how fast a model is on this machine, on the CPU, in every runtime and precision that is
    installed, side by side, and how often each gives the model's own answers. For an exported file,
    measure how fast it is in every library that can run it; it may classify every pixel.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        data: Images to compare answers on: the test part of a data set. Default: parts of two
            photographs that come with scikit-learn.
        calibrate: Images for the calibration of int8 and the fitting of exits, 300 at most. Default:
            the training part of `data`; if that has only one part, every second image, and answers are
            compared on the others.
        batch: Images in a forward pass: one number, or several.
        rounds: Number of turns of each runtime, at each batch size.
        seconds: Length of a turn.
        limit: Largest number of images to compare answers on.
        runtimes: Runtimes to measure, if they are installed. compiled (torch.compile) takes minutes to
            start.
        precisions: Precisions to measure, if this machine can compute in them.
        timm: Models of timm, such as vit_tiny_patch16_224, whose speed in timm is compared.
        merge: Also measure PyTorch with this many tokens merged in every block, such as 4 8 16: less
            work, and slightly different answers (docs/export.md).
        exit: Also measure PyTorch with early exits, which end the computation of an image as soon as a
            class reaches this probability, such as 0.9 0.7.
        start_up: Also measure processes: the time from their start to the first answer, and their
            memory.
        report: Files to write: .json has the numbers, .png a picture of them.
        json: Print the numbers as one line of JSON.
        **overrides: Settings that the file of the model does not give, or that you want to change:
            `Overrides`.

    Raises:
        BadSettings: If a number is out of range, or if a setting needs the model and an exported file
            was given.
        BadWeights: If the model cannot be read.
    """
    plan = Turns(batch, rounds, seconds)
    hints = hints_of(overrides)
    _check(plan, limit, data, calibrate, report)
    if isinstance(model, str) and is_exported(model):  # exported files are only timed
        _check_is_only_timed(
            model,
            data=data,
            calibrate=calibrate,
            limit=limit,
            precisions=precisions,
            merge=merge,
            exit=exit,
        )
        measured = _of_file(model, hints, runtimes, timm, plan, start_up)
    else:
        _log_missing_packages(runtimes, precisions)
        classifier = classifier_with_head(model, hints)
        check_less_work(classifier, merge, exit)
        trial = sample_trial()
        if data:
            needs_images = "int8" in precisions or bool(exit)
            trial = trial_on(data, classifier.labels, limit, calibrate if needs_images else None)
        candidates = Candidates(runtimes, precisions, timm, merge, exit)
        measured = _of_model(model, classifier, trial, candidates, plan, start_up)

    # The result, and its files
    facts = described(model, plan, measured.implementations, measured.speeds, measured.images)
    for path in report:
        write(path, facts, measured.implementations, measured.speeds)
    return Benchmark(
        classifier=measured.classifier,
        implementations=measured.implementations,
        speeds=measured.speeds,
        facts=facts,
        remembered=measured.remembered,
        model=model,
        of_samples=not data,
        report=report,
        json=json,
        segments=measured.segments,
    )


@dataclass(frozen=True)
class Candidates:
    """The candidates to measure for a model."""

    runtimes: tuple[Library, ...]
    precisions: tuple[Precision, ...]
    timm: tuple[str, ...]
    """Names of models of timm."""
    merge: tuple[int, ...]
    """Numbers of tokens to merge in every block."""
    exit: tuple[float, ...]
    """Thresholds of early exits, as probabilities."""


class Measured(NamedTuple):
    """The measured candidates, and the images of the measurement."""

    classifier: Classifier
    implementations: tuple[Implementation, ...]
    speeds: tuple[RuntimeSpeed, ...]
    images: str
    """Description of the images."""
    remembered: tuple[FastestRuntime, ...] = ()
    segments: bool = False
    """Whether they classify every pixel."""


def _is_file(model: str | Classifier) -> bool:
    """Whether the model is an exported file, which is only timed."""
    return isinstance(model, str) and is_exported(model)


def _check_is_only_timed(file: str, **settings: Any) -> None:
    """Raises BadSettings if a setting that needs the model differs from its default."""
    parameters = signature(bench).parameters
    for name, value in settings.items():
        if value != parameters[name].default:
            raise BadSettings(
                f"{Path(file)} is an exported file, of which bench measures the speed; `{name}` is for the "
                f"model that it was exported from ({step('evaluate', file, DATA)} has its accuracy)"
            )


def _log_missing_packages(
    libraries: tuple[Library, ...], precisions: tuple[Precision, ...]
) -> None:
    """Log which packages are missing for measuring some candidates."""
    missing = set()
    for library in libraries:
        for precision in precisions:
            if library == "onnx" or library == "openvino":
                missing.update(missing_packages(Export(library, precision)))
    if missing:
        names = " and ".join(sorted(missing))
        say(f"what needs {names} is left out: pip install 'vitkit[export]'")


def _of_model(
    model: str | Classifier,
    classifier: Classifier,
    trial: Trial,
    candidates: Candidates,
    plan: Turns,
    start_up: bool,
) -> Measured:
    """Measure the speed of a model, in every runtime and precision."""
    items = trial.items[:: -(-len(trial.items) // MEASURED)]
    images = _of_one_size(classifier, prepared_images(classifier.preprocessing, items)[0])
    with TemporaryDirectory(prefix="vitkit-bench-") as folder, isolated_files() as open_isolated:
        found = tuple(_contenders(candidates, classifier, trial, Path(folder), open_isolated))
        say(f"measuring in turns, {_turns(plan, found):.0f} seconds or more")
        found, speeds = _measured(found, images, plan)
        remembered = _remember(classifier, found, speeds)
        if start_up:
            say("starting processes")
            speeds = _with_starts(model, classifier, found, speeds, Path(folder))
    return Measured(classifier, found, tuple(speeds), trial.name, tuple(remembered))


def _of_file(
    model: str,
    hints: Hints,
    libraries: tuple[Library, ...],
    timm: tuple[str, ...],
    plan: Turns,
    start_up: bool,
) -> Measured:
    """Measure the speed of an exported file, in every library that can run it; there is no model to
    compare its predictions with. Raises BadSettings if none of the requested libraries can run
    it."""
    file = Path(model)
    readers = readers_of(file) or [
        "auto"
    ]  # opening with "auto" raises an error that names the package
    chosen = [each for each in readers if each in (*libraries, "auto")]
    if not chosen:
        raise BadSettings(
            f"{file} is computed by {' or '.join(readers)}, and `runtimes` is {' '.join(libraries)}"
        )

    check_file_settings(model, hints, "cpu")
    with isolated_files() as open_isolated:
        return _of_file_in(open_isolated, file, chosen, timm, plan, start_up)


def _of_file_in(
    open_isolated: OpenFile,
    file: Path,
    libraries: Sequence[Library | Literal["auto"]],
    timm: tuple[str, ...],
    plan: Turns,
    start_up: bool,
) -> Measured:
    """Measure the speed of an exported file in these libraries, each in a process of its own. Raises
    WorkerDied if all processes die."""
    # The runtimes
    found: list[Implementation] = []
    runtimes = []
    for library in libraries:
        try:
            process = open_isolated(file, library)
        except WorkerDied as error:
            if library == libraries[-1] and not found:
                raise
            say(f"{library} is left out: {error}", WARNING)
            continue
        found.append(of_exported(process))
        runtimes.append(process.runtime)
    report_differences(file, runtimes[0])
    segments = runtimes[0].exported.segments
    classifier = of_file(runtimes[0])
    found += [of_timm(name, classifier) for name in timm]

    # The images
    height, width = PHOTOGRAPH
    images = np.random.default_rng(0).integers(0, 256, (1, 3, height, width), dtype=np.uint8)
    name = f"a picture of {height} x {width} pixels"
    if not takes_pictures(runtimes[0]):
        trial = sample_trial()
        prepared, _ = prepared_images(classifier.preprocessing, trial.items[:MEASURED])
        images = _of_one_size(classifier, prepared)
        name = trial.name

    # The speed
    say(f"measuring in turns, {_turns(plan, found):.0f} seconds or more")
    implementations, speeds = _measured(found, images, plan)
    if start_up:
        say("starting processes")
        command: Command = "segment" if segments else "predict"
        for start, megabytes in _starts([file], command):
            speeds[0] = replace(speeds[0], start=start, megabytes=megabytes)
    return Measured(classifier, implementations, tuple(speeds), name, segments=segments)


def _measured(
    found: Sequence[Implementation], images: np.ndarray, plan: Turns
) -> tuple[tuple[Implementation, ...], list[RuntimeSpeed]]:
    """The candidates with measurements, and their speeds; those whose process died are left out. Raises
    WorkerDied if none is left."""
    pairs = []
    for implementation, speed in zip(found, measure(found, images, plan), strict=True):
        if speed.images_per_second:
            pairs.append((implementation, speed))
    if not pairs:
        raise WorkerDied("every process that was measured has ended before there were figures")
    return tuple(implementation for implementation, _ in pairs), [speed for _, speed in pairs]


def _starts(
    models: Sequence[Path | str], command: Command = "predict"
) -> list[tuple[float, float | None]]:
    """The result of `measure_starts`; empty, with a log message, if a process fails: other figures
    stay valid."""
    try:
        return measure_starts(models, command)
    except VitkitError as error:
        say(f"the start of processes is not measured: {error}", WARNING)
        return []


def _turns(plan: Turns, found: Sequence[Implementation]) -> float:
    """Lower bound of the duration of all turns, in seconds."""
    return len(found) * len(plan.batches) * plan.rounds * plan.seconds


def _of_one_size(classifier: Classifier, images: np.ndarray) -> np.ndarray:
    """The prepared images, (N, 3, h, w); for images at their own proportions those of the most
    common size."""
    if images.ndim == 4:
        return images
    alone = [classifier.preprocessing.image_of(images, number) for number in range(len(images))]
    return np.stack([alone[number] for number in of_one_size([image.shape for image in alone])])


def _check(plan: Turns, limit: int, data: str, calibrate: str, report: tuple[Path, ...]) -> None:
    """Raises BadSettings if numbers are out of range, or if files cannot be written."""
    if not plan.batches or min(plan.batches) < 1:
        raise BadSettings(f"`batch` is {plan.batches}; it is one or more numbers of images")
    if plan.rounds < 1 or not plan.seconds > 0 or limit < 1:
        raise BadSettings(
            f"`rounds` is {plan.rounds}, `seconds={plan.seconds}` and `limit={limit}`; "
            "each must be more than 0"
        )
    if calibrate and not data:
        raise BadSettings("`calibrate` goes with `data`, images to compare answers on")
    for path in report:
        if path.suffix.lower() not in WRITTEN:
            raise BadSettings(f"`report` is {path}; give the name of a .json or a .png file")
        check_replaceable(path)


def _contenders(
    candidates: Candidates,
    classifier: Classifier,
    trial: Trial,
    folder: Path,
    open_isolated: OpenFile,
) -> Iterator[Implementation]:
    """All candidates to measure. Logs each when it is ready."""
    for name in candidates.timm:  # first, so that an unknown name is reported before the long work
        yield of_timm(name, classifier)
    own = implementations(
        classifier, trial, folder, open_isolated, candidates.runtimes, candidates.precisions
    )
    less = with_less_work(classifier, trial, candidates.merge, candidates.exit)
    for implementation in chain(own, less):
        say(f"{implementation.name}: {implementation.agreement}")
        yield implementation


def _remember(
    classifier: Classifier, found: Sequence[Implementation], speeds: Sequence[RuntimeSpeed]
) -> list[FastestRuntime]:
    """Save the fastest runtime for `runtime='auto'`. Only logs a message if that fails."""
    try:
        return remember(classifier, found, speeds)
    except OSError as error:
        say(f"which is the fastest is not remembered: {error}")
        return []


def _with_starts(
    model: str | Classifier,
    classifier: Classifier,
    found: Sequence[Implementation],
    speeds: Sequence[RuntimeSpeed],
    folder: Path,
) -> list[RuntimeSpeed]:
    """The speeds with the start-up time and memory of a process. For PyTorch, the process opens the model
    itself, which is saved temporarily if it is in memory."""
    if isinstance(model, Classifier):
        model = str(save(classifier, folder / "model"))
    models: dict[int, Path | str] = {}
    for i, implementation in enumerate(found):
        if implementation.file is not None:
            models[i] = implementation.file
        elif implementation.name == "PyTorch float32":
            models[i] = model
    speeds = list(speeds)
    measured = _starts(list(models.values()))
    for i, (seconds, megabytes) in zip(models, measured, strict=False):  # `measured` may be empty
        speeds[i] = replace(speeds[i], start=seconds, megabytes=megabytes)
    return speeds


def versions() -> dict[str, str]:
    """The versions of the installed libraries that compute."""
    found = {}
    for package in VERSIONED:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def described(
    model: str | Classifier,
    plan: Turns,
    found: Sequence[Implementation],
    speeds: Sequence[RuntimeSpeed],
    images: str,
) -> dict:
    """All measurements and their conditions, as plain values."""
    rows = []
    for implementation, speed in zip(found, speeds, strict=True):
        agreement = implementation.agreement
        if agreement is not None:
            agreement = private.public(asdict(agreement))
        rows.append(
            {
                "library": implementation.library,
                "precision": implementation.precision,
                "calibrated": implementation.is_calibrated,
                "less": implementation.less,
                **speed.to_json(),
                "agreement": agreement,
            }
        )
    name = "MODEL"
    if isinstance(model, str):
        name = private.public(model)
    load = None
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
    return {
        "made": MARK,
        "model": name,
        "images": private.public(images),
        "machine": processor(),
        "threads": threads(),
        "versions": versions(),
        "load": load,
        "date": date.today().isoformat(),
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "runtimes": rows,
    }


def write(
    path: Path, written: dict, found: Sequence[Implementation], speeds: Sequence[RuntimeSpeed]
) -> None:
    """Write the numbers, or a figure of them."""
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".json":
        write_json(path, written)
        return

    draw(path, found, speeds)
