"""Throughput of a model's inference, and the largest batch that fits into memory, found by search.

A separate process runs out of memory. On a CPU the operating system limits how much memory the
process may allocate; on a GPU the limit is the GPU's memory.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from vitkit.evaluation import COUNT, Metric, Unit
from vitkit.models import ModelConfig, create, for_inference, named
from vitkit.system.errors import BadSettings
from vitkit.system.machine import autocast, pick_device, pick_precision
from vitkit.system.processes.ranks import from_rank_0, process_group

RATE = Unit("images per second", "images per second", "higher", ",.1f")
MOST = 1 << 16  # largest batch size
CLOSE = 16  # the search ends within one sixteenth of the largest batch
GIB = 1 << 30
BATCH = 64  # batch size, if it is not searched for
PASSES = 5  # timed passes with BATCH, after one for warming up
CHILD = "from vitkit.apps.studies.throughput import child; child()"


@dataclass(frozen=True)
class Fastest:
    """Measures a model at an image size, on random images."""

    model: str
    """Name of the model."""
    side: int
    """Height and width of the images in pixels."""
    memory: float = 0.25
    """Memory limit of a batch on a CPU, in GiB."""
    seconds: float = 0.3
    """Duration of the timing of each batch; a single pass if that takes longer."""

    def measure(self, device: str) -> list[Metric]:
        """Images per second at the best batch size; the largest batch that fits, and the best batch size.
        Raises VitkitError if not even one image fits."""
        tried = from_rank_0(lambda: self.search(device))
        if not tried:
            raise BadSettings(
                f"not even one image of {self.side} pixels fits into {self.memory:g} GiB; give more "
                "`memory`"
            )
        best = max(tried, key=lambda batch: tried[batch])
        return [
            Metric("images/s", tried[best], RATE),
            Metric("largest batch", max(tried), COUNT),
            Metric("best batch", best, COUNT),
        ]

    def search(self, device: str) -> dict[int, float]:
        """Images per second at every batch size that fits, measured in another process. Raises
        VitkitError with the last output of that process if it fails from the start."""
        words = json.dumps({**asdict(self), "device": device})
        run = subprocess.run(
            [sys.executable, "-c", CHILD], input=words, capture_output=True, text=True
        )
        tried = {}
        lines = [line for line in run.stdout.splitlines() if line.startswith("[")]
        for line in lines:  # output before the process ran out of memory
            batch, rate = json.loads(line)
            tried[batch] = rate
        if not lines and run.returncode != 0:
            last = run.stderr.strip().splitlines()[-1:]
            raise BadSettings(f"{self.model} cannot be measured: {''.join(last)}")
        return tried


@dataclass(frozen=True)
class Speed:
    """Images per second of a model's forward pass in batches of BATCH, on random images."""

    model: ModelConfig
    """The model."""

    def measure(self, device: str) -> list[Metric]:
        """The speed of the fastest pass."""
        with process_group(device) as own_device:
            model = for_inference(create(self.model, own_device, 0))
            height, width = model.config.image
            images = torch.rand(BATCH, model.config.channels, height, width, device=own_device)
            precision = pick_precision("auto", own_device).precision
            times = []
            for _ in range(1 + PASSES):
                began = time.perf_counter()
                with torch.inference_mode(), autocast(own_device, precision):
                    model(images).sum().item()  # synchronises with a GPU
                times.append(time.perf_counter() - began)
        return [Metric("images/s", BATCH / min(times[1:]), RATE)]


def largest(fits: Callable[[int], bool], most: int = MOST) -> int:
    """The largest batch size that fits, within a sixteenth; 0 if not even one image does. By
    doubling, then by bisection between one that fits and one that does not."""
    low = 0
    high = 1
    while high <= most and fits(high):
        low = high
        high *= 2
    if high > most:
        return low
    while high - low > max(low // CLOSE, 1):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def child() -> None:
    """Main function of the measuring process: reads settings from stdin, and prints [batch, images
    per second]."""
    settings = json.loads(sys.stdin.read())
    device = pick_device(settings.pop("device"))
    measured = Fastest(**settings)
    config = named(measured.model, classes=1000)
    model = create(config.resized((measured.side, measured.side)), device, 0)
    model = for_inference(model)
    precision = pick_precision("auto", device).precision
    one = torch.rand(1, 3, measured.side, measured.side, device=device)

    def forward(images: torch.Tensor) -> float:
        """Seconds of a pass."""
        began = time.perf_counter()
        with torch.inference_mode(), autocast(device, precision):
            model(images)[0, 0].item()  # synchronises with a GPU
        return time.perf_counter() - began

    def fits(batch: int) -> bool:
        # Built again for each batch size, because libraries cache memory for every size that they
        # have seen
        if device.type == "cpu":
            _limit(int(measured.memory * GIB))
        try:
            images = one.repeat(
                batch, 1, 1, 1
            )  # random images of this number would take longer than some models
            times = list(_passes(partial(forward, images), measured.seconds))
        except (RuntimeError, MemoryError):  # PyTorch's errors for a failed allocation
            if device.type == "cuda":
                torch.cuda.empty_cache()
            return False
        print(json.dumps([batch, batch / statistics.median(times)]), flush=True)
        return True

    forward(one)  # loads all libraries and starts their threads before memory is limited
    largest(fits)


def _passes(forward: Callable[[], float], seconds: float) -> Iterator[float]:
    """Seconds of each pass: of the first only, if it is long; else of the following ones."""
    first = forward()
    if first > seconds:
        yield first
        return
    spent = 0.0
    while spent < seconds:
        taken = forward()
        spent += taken
        yield taken


def _limit(more: int) -> None:
    """Limit the memory of this process to `more` bytes above its current use. Needs Linux."""
    import resource

    lines = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now * 1024 + more, resource.RLIM_INFINITY))
