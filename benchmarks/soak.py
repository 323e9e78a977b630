"""A long day of `vitkit serve`, over loopback: nothing may be lost, and nothing may grow.

Two processes serve an exported model. Honest clients, who know every right answer, ask beside hostile
ones, and meanwhile

    every minute    a worker is killed (the younger one: the other lives through it all)
    every 2 minutes the model is replaced by another, whose answers differ, and SIGHUP sent
    every 90 s      the clock jumps, by up to years (with libfaketime: apt install faketime)
    every 150 s     600 connections open, and say nothing, where 256 descriptors are the limit
    always          the log is on a full disk of 256 KiB (or without root, behind a limit of a
                    file's size), but for a moment at half time, when it is emptied

An honest request whose connection ends while its worker is killed is asked again, and counted apart;
any other that gets no answer, or a wrong one, is a loss. The new model's answers are due 60 seconds
after a swap. The memory is that which the processes have for themselves and in parts (Pss).

    python benchmarks/soak.py --model vit_tiny.safetensors --images val.parquet --minutes 60
"""

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
import record
from soak_traffic import Stage, ask_honestly, attack, be_silent, metrics_of

import vitkit
from vitkit.apps.serve.functions.serve import open_model
from vitkit.prediction import predict_items
from vitkit.runtimes import Runtime

FILES = 60  # photographs that are sent
HONEST = 4  # clients
HOSTILE = 2
DESCRIPTORS = 256
DISK = 256 << 10  # bytes for the log
LIBRARIES = "/usr/lib/*/faketime/libfaketimeMT.so.1"
JUMPS = ("+0", "+1h", "-1h", "+1d", "-30d", "+20y", "-5y")
EVENTS = {
    "kill": (60, 8),
    "swap": (120, 45),
    "jump": (90, 70),
    "flood": (150, 100),
    "look": (60, 55),
}
"""Every so many seconds, the first time after so many."""


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="a model that vitkit opens")
    parser.add_argument("--images", required=True, help="parquet of photographs")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument(
        "--pause", type=float, default=0.4, help="seconds between two requests of a client"
    )
    parser.add_argument("--output", type=Path, help="file for the results, JSON")
    options = parser.parse_args()

    images = pq.read_table(options.images).column("image").to_pylist()
    files = [image["bytes"] for image in images[:FILES]]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the disk is unmounted
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with TemporaryDirectory() as name, disk(Path(name) / "disk") as kind_of_disk:
        folder = Path(name)
        models = two_models(options.model, folder)
        expected = [answers(open_model(str(model), device="cpu"), files) for model in models]
        point(folder, models[0])
        with serving(folder) as (process, port):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))  # for the flood
            stage = Stage(port, files, expected, options.pause)
            day = Day(stage, process, folder, models)
            day.run(60 * options.minutes)
            process.terminate()
            status = process.wait(60)
        result = {
            **record.about(
                "a soak of vitkit serve", ("torch", "onnxruntime", "fastapi", "uvicorn", "vitkit")
            ),
            "load": record.load(),
            "minutes": options.minutes,
            "disk": kind_of_disk,
            "clock": "libfaketime" if faketime() else "does not jump: there is no libfaketime",
            **day.result(),
            "exit_status": status,
        }
    print(
        json.dumps(
            {name: value for name, value in result.items() if name != "minute_by_minute"}, indent=1
        )
    )
    record.write(result, options.output)
    losses = stage.counts["lost"] + stage.counts["wrong"] + stage.counts["failures"]
    sys.exit(min(losses, 1))


# Before the day


def two_models(name: str, folder: Path) -> list[Path]:
    """A model, and the same with its classes' names moved by one, exported."""
    classifier = vitkit.load(name, quiet=True)
    labels = tuple(f"{i} {label}" for i, label in enumerate(classifier.labels))  # each once
    paths = []
    for number, names in enumerate((labels, labels[1:] + labels[:1])):
        path = folder / f"{number}.onnx"
        vitkit.export(replace(classifier, labels=names), path)
        paths.append(path)
    return paths


def answers(runtime: Runtime, files: list[bytes]) -> list[dict[str, float]]:
    """Of each file, the probability of each class."""
    given = predict_items(runtime, files, top=len(runtime.labels), workers=0)
    return [dict(zip(each.labels, each.probabilities, strict=True)) for each in given]


def point(folder: Path, model: Path) -> None:
    """Have current.onnx be this model, in one step."""
    link = folder / "new"
    link.symlink_to(model)
    link.replace(folder / "current.onnx")


@contextmanager
def disk(folder: Path) -> Iterator[str]:
    """A small disk for the log, at this folder, and what it is."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = not subprocess.run(command, capture_output=True).returncode
    try:
        yield f"tmpfs of {DISK:,} bytes" if mounted else f"files of {DISK:,} bytes at most"
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def faketime() -> str:
    """The library that makes clocks jump; empty if it is not installed."""
    found = sorted(Path("/").glob(LIBRARIES.lstrip("/")))
    return str(found[0]) if found else ""


def limit() -> None:
    """Of a process that begins: its descriptors, and the size of its files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    """The server, and its port."""
    environment = dict(os.environ)
    (folder / "clock").write_text(JUMPS[0])
    if faketime():
        environment["LD_PRELOAD"] = faketime()
        environment["FAKETIME_TIMESTAMP_FILE"] = str(folder / "clock")
        environment["FAKETIME_CACHE_DURATION"] = "1"
        environment["FAKETIME_DONT_FAKE_MONOTONIC"] = "1"  # no clock of that kind ever jumps
    words = ["serve", str(folder / "current.onnx"), "--port", "0", "--workers", "2", "--batch", "8"]
    with (folder / "disk" / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vitkit", *words, "--device", "cpu"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            preexec_fn=limit,
        )
    try:
        line = process.stdout.readline()
        port = re.search(r":(\d+) ", line)
        assert port, (line, (folder / "disk" / "log").read_text())
        yield process, int(port[1])
    finally:
        process.kill()
        process.communicate()


# The day


class Day:
    """What happens to the server, and when."""

    def __init__(self, stage: Stage, process: subprocess.Popen, folder: Path, models: list[Path]):
        self.stage = stage
        self.process = process
        self.folder = folder
        self.models = models
        self.log = folder / "disk" / "log"
        self.draws = random.Random(0)
        self.happened = dict.fromkeys(EVENTS, 0)
        self.minutes: list[dict] = []
        self.floods: list[threading.Thread] = []
        self.log_sizes: list[int] = []

    def run(self, seconds: float) -> None:
        """Until it is over, or the server ends by itself."""
        clients = []
        for number in range(HONEST):
            clients.append(threading.Thread(target=ask_honestly, args=(self.stage, number)))
        for number in range(HOSTILE):
            clients.append(threading.Thread(target=attack, args=(self.stage, number)))
        for client in clients:
            client.start()

        began = time.monotonic()
        due = {name: first for name, (_, first) in EVENTS.items()}
        self.look(0.0)
        emptied = False
        try:
            while (now := time.monotonic() - began) < seconds:
                if self.process.poll() is not None:
                    self.stage.complain("failures", f"the server ended: {self.process.returncode}")
                    break
                for name, (every, _) in EVENTS.items():
                    if now >= due[name]:
                        due[name] += every
                        self.happened[name] += 1
                        getattr(self, name)(now)
                if now > seconds / 2 and not emptied:
                    emptied = True
                    self.empty_the_log()
                time.sleep(0.5)
        finally:
            self.stage.over.set()
            for thread in (*clients, *self.floods):
                thread.join()
        self.log_sizes.append(self.log.stat().st_size)

    def kill(self, now: float) -> None:
        """The younger worker, without warning."""
        workers = self.workers()
        if len(workers) == 2:
            self.stage.kills.append(time.monotonic())
            with suppress(ProcessLookupError):
                os.kill(workers[-1], signal.SIGKILL)

    def swap(self, now: float) -> None:
        """Serve the other model."""
        other = 1 - self.stage.current
        point(self.folder, self.models[other])
        self.stage.swapped = time.monotonic()
        self.stage.current = other
        self.process.send_signal(signal.SIGHUP)

    def jump(self, now: float) -> None:
        """Set the server's clock."""
        (self.folder / "clock").write_text(self.draws.choice(JUMPS))

    def flood(self, now: float) -> None:
        """More connections than descriptors."""
        self.floods.append(threading.Thread(target=be_silent, args=(self.stage,)))
        self.floods[-1].start()

    def look(self, now: float) -> None:
        """Write down how the processes are."""
        workers = self.workers()
        row = {"minute": round(now / 60, 1), "parent_mb": memory(self.process.pid)}
        row["workers_mb"] = [memory(pid) for pid in workers]
        row["descriptors"] = [descriptors(pid) for pid in (self.process.pid, *workers)]
        row["answered"] = self.stage.counts["answered"]
        with suppress(OSError):
            row["metrics_seconds"], row["metrics_bytes"] = metrics_of(self.stage.port)
        self.minutes.append(row)
        print(json.dumps(row | {"problems": self.stage.problems[-3:]}), flush=True)

    def empty_the_log(self) -> None:
        """As who rotates logs does."""
        self.log_sizes.append(self.log.stat().st_size)
        os.truncate(self.log, 0)

    def workers(self) -> list[int]:
        """The processes that answer, the oldest first."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        found = []
        for pid in map(int, children.split()):
            with suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append((int(Path(f"/proc/{pid}/stat").read_text().split()[21]), pid))
        return [pid for _, pid in sorted(found)]

    def result(self) -> dict:
        """Its figures."""
        stage = self.stage
        names = ("answered", "images", "wrong", "lost", "failures", "in flight in a killed worker")
        p50, p99 = np.percentile(stage.latencies or [0], [50, 99])
        return {
            "honest": {name: stage.counts[name] for name in (*names, "told to ask again")},
            "hostile": {
                name: dict(sorted(counts.items())) for name, counts in sorted(stage.hostile.items())
            },
            "happened": self.happened,
            "slowest_swap_seconds": round(stage.slowest_swap, 1),
            "problems": stage.problems[:20],
            "latency_ms": {
                "p50": round(1000 * p50),
                "p99": round(1000 * p99),
                "longest": round(1000 * max(stage.latencies, default=0)),
            },
            "first": self.minutes[min(1, len(self.minutes) - 1)],
            "last": self.minutes[-1],
            "log_bytes_at_half_time_and_end": self.log_sizes,
            "minute_by_minute": self.minutes,
        }


def memory(pid: int) -> float:
    """Megabytes of a process, what it shares in parts; 0 for one that has ended."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return round(int(re.search(r"Pss:\s+(\d+)", text)[1]) / 1000, 1)
    return 0.0


def descriptors(pid: int) -> int:
    """How many files and connections a process has open."""
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


if __name__ == "__main__":
    main()
