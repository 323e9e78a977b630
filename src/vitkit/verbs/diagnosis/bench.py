"""How fast a model is on this machine, in every runtime and precision, side by side."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import numpy as np
from tyro.conf import arg

from vitkit.benching import (
    MEASURED,
    PHOTOGRAPH,
    Contender,
    Plan,
    Speed,
    contenders,
    draw,
    measure,
    measure_starts,
    of_exported,
    of_timm,
    remember,
    with_less_work,
)
from vitkit.data import of_one_size
from vitkit.exporting import (
    Export,
    Trial,
    missing_packages,
    prepared_images,
    sample_trial,
    trial_on,
)
from vitkit.runtimes import (
    PACKAGES,
    VERSIONED,
    Fastest,
    check_less_work,
    is_exported,
    of_file,
    readers_of,
    takes_pictures,
    threads,
)
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word
from vitkit.system.errors import BadSettings
from vitkit.system.machine import processor
from vitkit.system.storage.files import MARK, check_replaceable, write_json
from vitkit.system.storage.private import public
from vitkit.verbs.arguments import Model, ModelHints, word_of
from vitkit.verbs.computing import any_runtime_of_file, classifier_with_head
from vitkit.verbs.definition import result, verb
from vitkit.verbs.diagnosis.bench_output import recommendation, tables
from vitkit.weights import Classifier, Hints, save

WRITTEN = (".json", ".png")


@dataclass(frozen=True)
class Bench:
    """Measure how fast a model is on this machine, on the CPU, in every runtime and precision that is
    installed, side by side, and how often each gives the model's own answers. For an exported file,
    measure how fast it is in every library that can run it."""

    model: Model
    data: Annotated[str, arg(metavar="DATA")] = ""
    """Images to compare answers on: the test part of a data set. Default: parts of two photographs
    that come with scikit-learn."""
    calibrate: Annotated[str, arg(metavar="DATA")] = ""
    """Images for the calibration of int8 and the fitting of exits, 300 at most. Default: the
    training part of --data; if that has only one part, every second image, and answers are compared
    on the others."""
    batch: tuple[int, ...] = (1, 8, 32)
    """Images in a forward pass: one number, or several."""
    rounds: int = 5
    """How often each runtime has its turn, at each batch size."""
    seconds: float = 0.5
    """Length of a turn."""
    limit: int = 200
    """Largest number of images to compare answers on."""
    runtimes: tuple[Literal["torch", "compiled", "onnx", "openvino"], ...] = (
        "torch",
        "onnx",
        "openvino",
    )
    """Runtimes to measure, if they are installed. compiled (torch.compile) takes minutes to
    start."""
    precisions: tuple[Literal["float32", "bfloat16", "int8"], ...] = ("float32", "bfloat16", "int8")
    """Precisions to measure, if this machine can compute in them."""
    timm: tuple[str, ...] = ()
    """Models of timm, such as vit_tiny_patch16_224, whose speed in timm is compared."""
    merge: tuple[int, ...] = ()
    """Also measure PyTorch with this many tokens merged in every block, such as 4 8 16: less work,
    and slightly different answers (docs/export.md)."""
    exit: tuple[float, ...] = ()
    """Also measure PyTorch with early exits, which end the computation of an image as soon as a
    class reaches this probability, such as 0.9 0.7."""
    start_up: bool = True
    """Also measure processes: the time from their start to the first answer, and their memory."""
    report: tuple[Path, ...] = ()
    """Files to write: .json has the numbers, .png a picture of them."""
    json: bool = False
    """Print the numbers as one line of JSON."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class Benchmark:
    """How fast a model is on this machine, in every runtime and precision."""

    settings: Bench
    classifier: Classifier
    """The model, or an exported file that computes one."""
    contenders: tuple[Contender, ...]
    """What was measured, each with how far it gives the model's answers."""
    speeds: tuple[Speed, ...]
    """Theirs, in the same order."""
    facts: dict
    """All that was measured, and on what, as plain values."""
    remembered: tuple[Fastest, ...]
    """What the runtime "auto" takes from now on."""

    def rows(self) -> list[dict]:
        """A row for each runtime and precision."""
        rows = []
        for values in self.facts["runtimes"]:
            row = {}
            for name, value in values.items():
                if isinstance(value, dict):
                    row |= {f"{name}.{key}": each for key, each in value.items()}
                else:
                    row[name] = value
            rows.append(row)
        return rows

    def shown(self) -> Iterator[str]:
        """A table, what was written, and which to take; or JSON."""
        settings = self.settings
        if settings.json:
            yield json.dumps(self.facts)
            return
        yield from tables(self.contenders, self.speeds)
        for path in settings.report:
            yield f"wrote {path}"
        for fastest in self.remembered:
            yield f"remembered for --runtime auto: {fastest}"
        if _is_file(settings):
            file = word_of(settings.model)
            yield f"next: vitkit evaluate {file} DATA, for its accuracy; --against MODEL compares answers"
            return
        activation = self.classifier.activation
        yield recommendation(word_of(settings.model), self.contenders, self.speeds, activation)
        if settings.data == "":
            yield "these answers are to parts of two photographs: --data DATA compares on your own"


@verb
def bench(settings: Bench) -> Benchmark:
    """Measure how fast a model is on this machine, in every runtime and precision that is
    installed, side by side; and how far each gives the model's answers. For an exported file: how
    fast it is, in every library that can run it. Raises ValueError for numbers that cannot be, and
    for what an exported file cannot be asked."""
    check(settings)
    if _is_file(settings):
        return _of_file(settings)

    # What is not measured because a package is missing
    missing = set()
    for library in settings.runtimes:
        for precision in settings.precisions:
            if library in PACKAGES:
                missing.update(missing_packages(Export(library, precision)))
    if missing:
        names = " and ".join(sorted(missing))
        say(f"what needs {names} is left out: pip install 'vitkit[export]'")

    # The model, and what can compute it
    classifier = classifier_with_head(settings.model, settings.hints)
    check_less_work(classifier, settings.merge, settings.exit)
    trial = sample_trial()
    if settings.data:
        calibrate = None
        if "int8" in settings.precisions or settings.exit:
            calibrate = settings.calibrate
        trial = trial_on(settings.data, classifier.labels, settings.limit, calibrate)
    measured = trial.items[:: -(-len(trial.items) // MEASURED)]
    images = _of_one_size(classifier, prepared_images(classifier.preprocessing, measured)[0])
    plan = Plan(settings.batch, settings.rounds, settings.seconds)
    with TemporaryDirectory(prefix="vitkit-bench-") as folder:
        found = tuple(_contenders(settings, classifier, trial, Path(folder)))
        say(f"measuring in turns, {_turns(settings, found):.0f} seconds or more")
        speeds = measure(found, images, plan)
        remembered = _remember(classifier, found, speeds)
        if settings.start_up:
            say("starting processes")
            speeds = _with_starts(settings, classifier, found, speeds, Path(folder))

    return _written(settings, classifier, found, speeds, trial.name, remembered)


def _is_file(settings: Bench) -> bool:
    """Whether the model is an exported file, which is measured alone."""
    return isinstance(settings.model, str) and is_exported(settings.model)


def _of_file(settings: Bench) -> Benchmark:
    """How fast an exported file is, in every library that computes such files, its answers compared with
    nobody's. Raises ValueError for a library that cannot, and for settings that need the model."""
    file = Path(settings.model)
    for name in ("data", "calibrate", "limit", "precisions", "merge", "exit"):
        if getattr(settings, name) != getattr(Bench, name):
            raise BadSettings(
                f"{file} is an exported file, of which bench measures the speed; `{name}` is for the model "
                f"that it was exported from (vitkit evaluate {as_word(file)} DATA has its accuracy)"
            )
    libraries = readers_of(file) or ["auto"]  # whose sentence says what to install
    chosen = [each for each in libraries if each in (*settings.runtimes, "auto")]
    if not chosen:
        raise BadSettings(
            f"{file} is computed by {' or '.join(libraries)}, and `runtimes` is "
            f"{' '.join(settings.runtimes)}"
        )

    # What computes it
    runtimes = []
    for library in chosen:
        runtimes.append(any_runtime_of_file(settings.model, settings.hints, library, "auto", "cpu"))
    classifier = of_file(runtimes[0])
    found = [of_exported(runtime, file) for runtime in runtimes]
    found += [of_timm(name, classifier) for name in settings.timm]

    # On images that it takes
    height, width = PHOTOGRAPH
    images = np.random.default_rng(0).integers(0, 256, (1, 3, height, width), dtype=np.uint8)
    name = f"a picture of {height} x {width} pixels"
    if not takes_pictures(runtimes[0]):
        trial = sample_trial()
        prepared, _ = prepared_images(classifier.preprocessing, trial.items[:MEASURED])
        images = _of_one_size(classifier, prepared)
        name = trial.name

    # How fast it is
    say(f"measuring in turns, {_turns(settings, found):.0f} seconds or more")
    speeds = measure(found, images, Plan(settings.batch, settings.rounds, settings.seconds))
    if settings.start_up:
        say("starting processes")
        start, megabytes = measure_starts([file])[0]
        speeds[0] = replace(speeds[0], start=start, megabytes=megabytes)
    return _written(settings, classifier, found, speeds, name)


def _written(
    settings: Bench,
    classifier: Classifier,
    found: Sequence[Contender],
    speeds: Sequence[Speed],
    images: str,
    remembered: Sequence[Fastest] = (),
) -> Benchmark:
    """What was found, on which images, in the files that are asked for too."""
    facts = described(settings, found, speeds, images)
    for path in settings.report:
        write(path, facts, found, speeds)
    return Benchmark(settings, classifier, tuple(found), tuple(speeds), facts, tuple(remembered))


def _turns(settings: Bench, found: Sequence[Contender]) -> float:
    """Seconds of all turns, at least."""
    return len(found) * len(settings.batch) * settings.rounds * settings.seconds


def _of_one_size(classifier: Classifier, images: np.ndarray) -> np.ndarray:
    """The prepared images, (N, 3, h, w); of images at their own proportions those of the commonest size."""
    if images.ndim == 4:
        return images
    alone = [classifier.preprocessing.image_of(images, number) for number in range(len(images))]
    return np.stack([alone[number] for number in of_one_size([image.shape for image in alone])])


def check(settings: Bench) -> None:
    """Raises ValueError if numbers are out of range, or if files cannot be written."""
    if not settings.batch or min(settings.batch) < 1:
        raise BadSettings(f"`batch` is {settings.batch}; it is one or more numbers of images")
    if settings.rounds < 1 or not settings.seconds > 0 or settings.limit < 1:
        raise BadSettings(
            f"`rounds` is {settings.rounds}, `seconds={settings.seconds}` and `limit={settings.limit}`; "
            "each must be more than 0"
        )
    if settings.calibrate and not settings.data:
        raise BadSettings("`calibrate` goes with `data`, images to compare answers on")
    for path in settings.report:
        if path.suffix.lower() not in WRITTEN:
            raise BadSettings(f"`report` is {path}; give the name of a .json or a .png file")
        check_replaceable(path)


def _contenders(
    settings: Bench, classifier: Classifier, trial: Trial, folder: Path
) -> Iterator[Contender]:
    """All that are measured, each said when it is ready."""
    for name in settings.timm:  # a name that is wrong is found at once
        yield of_timm(name, classifier)
    own = contenders(classifier, trial, folder, settings.runtimes, settings.precisions)
    less = with_less_work(classifier, trial, settings.merge, settings.exit)
    for contender in chain(own, less):
        say(f"{contender.name}: {contender.agreement}")
        yield contender


def _remember(
    classifier: Classifier, found: Sequence[Contender], speeds: Sequence[Speed]
) -> "list[Fastest]":
    """Keep which is the fastest, for --runtime auto. What cannot be written is only not kept."""
    try:
        return remember(classifier, found, speeds)
    except OSError as error:
        say(f"which is the fastest is not remembered: {error}")
        return []


def _with_starts(
    settings: Bench,
    classifier: Classifier,
    found: Sequence[Contender],
    speeds: Sequence[Speed],
    folder: Path,
) -> list[Speed]:
    """The same, with what a process takes. PyTorch's are started with the model itself, which is
    written for them if a program holds it."""
    model = settings.model
    if isinstance(model, Classifier):
        model = save(classifier, folder / "model")
    models = {}
    for i, contender in enumerate(found):
        if contender.file is not None:
            models[i] = contender.file
        elif contender.name == "PyTorch float32":
            models[i] = model
    measured = dict(zip(models, measure_starts(list(models.values())), strict=True))
    speeds = list(speeds)
    for i, (seconds, megabytes) in measured.items():
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
    settings: "Bench", found: Sequence[Contender], speeds: Sequence[Speed], images: str
) -> dict:
    """All measurements, and the images on which they were made."""
    rows = []
    for contender, speed in zip(found, speeds, strict=True):
        agreement = contender.agreement
        if agreement is not None:
            agreement = public(asdict(agreement))
        rows.append(
            {
                "library": contender.library,
                "precision": contender.precision,
                "calibrated": contender.is_calibrated,
                "less": contender.less,
                **speed.to_json(),
                "agreement": agreement,
            }
        )
    model = "MODEL"
    if isinstance(settings.model, str | Path):
        model = public(str(settings.model))
    load = None
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
    return {
        "made": MARK,
        "model": model,
        "images": public(images),
        "machine": processor(),
        "threads": threads(),
        "versions": versions(),
        "load": load,
        "date": date.today().isoformat(),
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "runtimes": rows,
    }


def write(path: Path, written: dict, found: Sequence[Contender], speeds: Sequence[Speed]) -> None:
    """Write the numbers, or a picture of them."""
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".json":
        write_json(path, written)
        return

    draw(path, found, speeds)
