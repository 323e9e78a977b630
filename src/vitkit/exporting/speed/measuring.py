"""Measures the speed of a model's runtimes on this machine, in turns, so that other load on the machine
affects all of them equally.

Legend: B batch, h w pixels of the model's input.
"""

import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from logging import WARNING
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Literal

import numpy as np
from PIL import Image

from vitkit.exporting.speed.candidates import Implementation, is_good
from vitkit.exporting.speed.isolated import passes
from vitkit.runtimes import FastestRuntime, folder_of
from vitkit.runtimes.fastest import NAME
from vitkit.system.console.messages import say
from vitkit.system.errors import VitkitError, WorkerDied
from vitkit.system.storage.files import write_json
from vitkit.weights import Classifier

PAUSE = 0.02  # seconds for the previous runtime's threads to go idle
MEASURED = 64  # largest number of images to measure on
STARTS = 3  # number of processes that are started
MEMORY_INTERVAL = 0.02  # seconds between two samples of a process's memory
PHOTOGRAPH = (480, 640)  # size of the image that a process classifies, pixels


@dataclass(frozen=True)
class Turns:
    """The schedule of the measurements."""

    batches: tuple[int, ...] = (1, 8, 32)
    """Batch sizes of the forward passes."""
    rounds: int = 5
    """Number of turns of each candidate at each batch size."""
    seconds: float = 0.5
    """Duration of a turn, or of two passes if these take longer."""


@dataclass(frozen=True)
class RuntimeSpeed:
    """The measured speed of a candidate."""

    images_per_second: dict[int, float]
    """Median throughput of the rounds, by batch size."""
    spread: dict[int, float]
    """Ratio of the fastest round to the slowest, by batch size."""
    p50: float | None
    """Median latency of a pass of one image, in milliseconds; None if no batch has one image."""
    p95: float | None
    """95th percentile of the latency of a pass of one image, in milliseconds; None without such a
    batch."""
    start: float | None = None
    """Seconds from start to end of a process that classifies one image, or its pixels; None if not measured."""
    megabytes: float | None = None
    """Peak memory of this process; None if not measured."""

    def to_json(self) -> dict:
        """The fields as plain values, for JSON."""
        return asdict(self)


def measure(
    implementations: Sequence[Implementation], images: np.ndarray, plan: Turns
) -> list[RuntimeSpeed]:
    """Measure all candidates in turns on images, uint8 (N, 3, h, w). They should be real ones,
    because the time of an early exit depends on them. A candidate whose process dies is measured no
    further, with a log message; it has no figures if one of its batch sizes was not measured."""
    repeated = -(-max(plan.batches) // len(images)) + 1
    images = np.concatenate([images] * repeated)

    # The first computations are slower
    ended = set()
    for i, implementation in enumerate(implementations):
        try:
            for batch in plan.batches:
                implementation.compute(images[:batch])
        except WorkerDied as error:
            _log_ended(implementation, error)
            ended.add(i)

    # Measure in turns
    rates: list[dict[int, list[float]]] = [
        {batch: [] for batch in plan.batches} for _ in implementations
    ]
    latencies: list[list[float]] = [[] for _ in implementations]
    for turn in range(plan.rounds):
        for batch in plan.batches:
            order = list(range(len(implementations)))
            if turn % 2:
                order.reverse()
            for i in order:
                if i in ended:
                    continue
                try:
                    times = _turn(implementations[i], images, batch, plan.seconds)
                except WorkerDied as error:
                    _log_ended(implementations[i], error)
                    ended.add(i)
                    continue
                rates[i][batch].append(batch * len(times) / sum(times))
                if batch == 1:
                    latencies[i] += times
    return [_speed(rate, times) for rate, times in zip(rates, latencies, strict=True)]


def _log_ended(implementation: Implementation, error: WorkerDied) -> None:
    say(f"{implementation.name} is not measured any further: {error}", WARNING)


def _turn(
    implementation: Implementation, images: np.ndarray, batch: int, seconds: float
) -> list[float]:
    """Seconds of each pass of a turn, which cycles through the images. Raises WorkerDied if the
    candidate's process dies."""
    time.sleep(PAUSE)
    if implementation.process is not None:
        return implementation.process.turn(images, batch, seconds)
    return passes(implementation.compute, images, batch, seconds)


def _speed(rates: dict[int, list[float]], times: list[float]) -> RuntimeSpeed:
    """The speed of a candidate, from the medians of all rounds."""
    if not all(rates.values()):
        return RuntimeSpeed({}, {}, None, None)
    medians = {batch: statistics.median(values) for batch, values in rates.items()}
    spread = {batch: max(values) / min(values) for batch, values in rates.items()}
    percentiles = [None, None]
    if times:
        percentiles = (1000 * np.percentile(times, (50, 95))).tolist()
    return RuntimeSpeed(medians, spread, *percentiles)


def measure_starts(
    models: Sequence[Path | str], command: Literal["predict", "segment"] = "predict"
) -> list[tuple[float, float | None]]:
    """Measure a command, such as `vitkit predict`, of one photograph with each of these models: seconds, and peak
    memory in megabytes (None if the system does not report it).

    Both are medians over several processes; the models take turns.
    """
    # For each model: (seconds, megabytes) of each process
    runs: list[list[tuple[float, float | None]]] = [[] for _ in models]
    with TemporaryDirectory() as folder:
        photograph = Path(folder) / "photograph.jpg"
        generator = np.random.default_rng(0)
        coarse = generator.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(PHOTOGRAPH[::-1], Image.Resampling.BICUBIC).save(photograph)
        for _ in range(STARTS):
            for measured, model in zip(runs, models, strict=True):
                measured.append(_start(str(model), str(photograph), command))
    medians = []
    for measured in runs:
        seconds, megabytes = zip(*measured, strict=True)
        known = [value for value in megabytes if value is not None]
        memory = None
        if known:
            memory = statistics.median(known)
        medians.append((statistics.median(seconds), memory))
    return medians


def _start(model: str, photograph: str, command: str = "predict") -> tuple[float, float | None]:
    """Seconds and megabytes of one process. Raises VitkitError with its last output if it fails."""
    words = [sys.executable, "-m", "vitkit", command, model, photograph, "--device", "cpu"]
    with TemporaryFile("w+") as errors:
        begun = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        megabytes = None
        while process.poll() is None:
            megabytes = _peak_megabytes(process.pid) or megabytes  # the peak never decreases
            time.sleep(MEMORY_INTERVAL)
        seconds = time.perf_counter() - begun
        if process.returncode != 0:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:]
            raise VitkitError(f"vitkit {command} {model} failed: {''.join(last)}")
    return seconds, megabytes


def _peak_megabytes(pid: int) -> float | None:
    """The peak memory of a running process. Returns None if the system does not report it, or if
    the process has just ended."""
    # Not getrusage, which reports ended processes: its figure starts from the parent's memory
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    peak = re.search(r"VmHWM:\s+([0-9]+) kB", status)  # the "high water mark"
    if peak is None:
        return None
    return int(peak[1]) * 1024 / 1e6


# Remembering the fastest runtime


PRECISIONS = ("float32", "bfloat16")  # those that `auto` can choose; int8 must be requested


def remember(
    classifier: Classifier, found: Sequence[Implementation], speeds: Sequence[RuntimeSpeed]
) -> list[FastestRuntime]:
    """Save the fastest runtime of each precision, if more than one was measured. Raises OSError."""
    kept = []
    for precision in PRECISIONS:
        rates = {}
        for implementation, speed in zip(found, speeds, strict=True):
            if _can_be_fastest(implementation, precision, classifier):
                rates[implementation.library] = (_mean_rate(speed), implementation)
        if len(rates) > 1 and "PyTorch" in rates:
            rate, best = max(rates.values(), key=lambda each: each[0])
            kept.append(_save_fastest(classifier, best, rate / rates["PyTorch"][0]))
    return kept


def _can_be_fastest(implementation: Implementation, precision: str, classifier: Classifier) -> bool:
    """Whether a candidate computes the whole model in this precision, accurately and without a slow
    start."""
    if (
        implementation.agreement is None
        or implementation.less
        or implementation.precision != precision
    ):
        return False
    if (
        implementation.library != "PyTorch" and implementation.file is None
    ):  # compilation takes minutes
        return False
    return is_good(implementation, classifier.activation)


def _mean_rate(speed: RuntimeSpeed) -> float:
    """Images per second, the geometric mean over all batch sizes."""
    rates = list(speed.images_per_second.values())
    return prod(rates) ** (1 / len(rates))


def _save_fastest(classifier: Classifier, best: Implementation, speedup: float) -> FastestRuntime:
    """Save the exported file of the fastest runtime with its measurements."""
    # The file comes first: the JSON file that names it is written when it is complete
    folder = folder_of(classifier)
    folder.mkdir(parents=True, exist_ok=True)
    file = ""
    if best.file is not None:
        file = best.file.name
        for path in best.file.parent.glob(f"{best.file.stem}.*"):  # .xml and .bin
            shutil.copyfile(path, folder / path.name)
    assert best.agreement is not None  # _can_be_fastest requires it
    fastest = FastestRuntime(
        library=best.library,
        precision=best.precision,
        times=speedup,
        same=best.agreement.same,
        images=best.agreement.images,
        date=date.today().isoformat(),
        file=file,
    )
    write_json(folder / f"{NAME}-{best.precision}.json", asdict(fastest))
    return fastest
