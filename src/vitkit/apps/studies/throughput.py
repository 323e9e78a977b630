"""How many images a second a model answers, and the largest batch that fits, found by search.

Memory runs out in a process of its own. On a CPU that process may take so much more memory and no
more, by the system's own limit; on a GPU it has what the GPU has.
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
MOST = 1 << 16  # images of a batch
CLOSE = 16  # the search ends within one sixteenth of the largest batch
GIB = 1 << 30
BATCH = 64  # images of a pass, if no batch is searched for
PASSES = 5  # that are timed then, after one that warms up
CHILD = "from vitkit.apps.studies.throughput import child; child()"


@dataclass(frozen=True)
class Fastest:
    """A model at an image size, on random images."""

    model: str
    """Name of the model."""
    side: int
    """Height and width of the images in pixels."""
    memory: float = 0.25
    """GiB that a batch may take on a CPU."""
    seconds: float = 0.3
    """What each batch is timed for, or one pass if that takes longer."""

    def measure(self, device: str) -> list[Metric]:
        """Images per second at the best batch; the largest batch that fits, and the best. Raises
        VitkitError if not even one image fits."""
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
        """Images per second of every batch that fits, measured in another process. Raises VitkitError,
        with its last words, if that process cannot work at all."""
        words = json.dumps({**asdict(self), "device": device})
        run = subprocess.run(
            [sys.executable, "-c", CHILD], input=words, capture_output=True, text=True
        )
        tried = {}
        lines = [line for line in run.stdout.splitlines() if line.startswith("[")]
        for line in lines:  # of a process that ran out of memory for good, what it said before
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
                    model(images).sum().item()  # waits for a GPU
                times.append(time.perf_counter() - began)
        return [Metric("images/s", BATCH / min(times[1:]), RATE)]


def largest(fits: Callable[[int], bool], most: int = MOST) -> int:
    """The largest batch that fits, within a sixteenth; 0 if not even one image does. By doubling, then
    by halving what lies between one that fits and one that does not."""
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
    """The main function of the other process: reads settings from stdin, and prints [batch, images
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
            model(images)[0, 0].item()  # waits for a GPU
        return time.perf_counter() - began

    def fits(batch: int) -> bool:
        # Anew for each: libraries keep some memory for every size of batch that they have met
        if device.type == "cpu":
            _limit(int(measured.memory * GIB))
        try:
            images = one.repeat(batch, 1, 1, 1)  # to draw each takes longer than some models
            times = list(_passes(partial(forward, images), measured.seconds))
        except (RuntimeError, MemoryError):  # PyTorch says so when an allocation fails
            if device.type == "cuda":
                torch.cuda.empty_cache()
            return False
        print(json.dumps([batch, batch / statistics.median(times)]), flush=True)
        return True

    forward(one)  # all libraries are loaded, and their threads begun, before memory is limited
    largest(fits)


def _passes(forward: Callable[[], float], seconds: float) -> Iterator[float]:
    """The times of passes: of the first alone, if it is long; else of those that follow."""
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
    """Let this process have so many more bytes of memory, and no more. Needs Linux."""
    import resource

    lines = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now * 1024 + more, resource.RLIM_INFINITY))
