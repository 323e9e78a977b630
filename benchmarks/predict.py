"""`vitkit predict` over a folder of photographs beside the bare forward pass of the same model, batch
and precision, on images that lie in memory, prepared.

    processes   from their start to their end, which is what somebody waits for: seconds, CPU seconds
    running     within one process, once everything is loaded: `vitkit.predict` with its workers, and
                the loop; their CPU seconds too, which other work on the machine changes little

They take turns, round after round. A share is the bare forward's median over predict's: 1 would be
reading, decoding, resizing and writing for nothing.

    python benchmarks/predict.py --model timm.safetensors --images val.parquet --count 1000
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import record
import torch
from end_to_end import Contender, Turn, timed

from vitkit import load
from vitkit.prediction import BATCH, predict_items
from vitkit.runtimes import Runtime, eager
from vitkit.system.machine import cpus

WAYS = ("predict", "bare")


def main() -> None:
    options = arguments()
    if options.bare:
        bare(runtime_of(options), options.count)
        return
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(options, Path(folder) / "files")
        turns = {
            "processes": of_processes(options, files),
            "running": of_one_process(options, files),
        }
    rows = [row(options.count, part, turns[part]) for part in turns]
    print_table(rows)
    result = {
        **record.about(
            "vitkit predict beside the bare forward pass", ("torch", "pillow", "vitkit")
        ),
        "load": record.load(),
        "threads": torch.get_num_threads(),
        "batch": BATCH,
        "count": options.count,
        "results": rows,
    }
    record.write(result, options.output)


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    record.model_arguments(parser)
    parser.add_argument("--count", type=int, default=1000, help="photographs to classify")
    parser.add_argument("--bare", action="store_true", help="compute the bare forward, and no more")
    return parser.parse_args()


def write_files(options: argparse.Namespace, folder: Path) -> list[Path]:
    """The photographs as files, again and again until there are enough."""
    folder.mkdir()
    images = pq.read_table(options.images).column("image").to_pylist()
    files = []
    for i in range(options.count):
        file = folder / f"{i:06}.jpg"
        file.write_bytes(images[i % len(images)]["bytes"])
        files.append(file)
    return files


def runtime_of(options: argparse.Namespace) -> Runtime:
    """The model as `vitkit predict` runs it."""
    return eager(load(options.model, quiet=True), "auto", options.precision)


def bare(runtime: Runtime, count: int) -> None:
    """The forward pass of so many images, and nothing else: one batch, again and again."""
    height, width = runtime.preprocessing.size
    images = np.random.default_rng(0).integers(0, 256, (BATCH, 3, height, width), dtype=np.uint8)
    for start in range(0, count, BATCH):
        logits = torch.from_numpy(runtime.logits(images[: count - start]))
        logits.softmax(-1).topk(5)


def of_processes(options: argparse.Namespace, files: list[Path]) -> dict[str, list[Turn]]:
    """What whole processes took."""
    folder = files[0].parent
    answers = folder.parent / "answers.csv"
    precision = ["--precision", options.precision]
    command = ["-m", "vitkit", "predict", options.model, str(folder), "--to", str(answers)]
    loop = [str(Path(__file__)), "--model", options.model, "--images", options.images, "--bare"]
    loop += ["--count", str(options.count)]
    contenders = {
        "predict": Contender("processes", "predict", [sys.executable, *command, *precision]),
        "bare": Contender("processes", "bare", [sys.executable, *loop, *precision]),
    }
    turns = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            turns[way].append(timed(contenders[way]))
            print(f"processes, {way}: {turns[way][-1].seconds:.1f} s", flush=True)
    lines = len(answers.read_text().splitlines()) - 1
    assert lines == options.count, f"{lines} rows for {options.count} images"
    return turns


def of_one_process(options: argparse.Namespace, files: list[Path]) -> dict[str, list[Turn]]:
    """What the work itself took, once everything is loaded and was used once."""
    runtime = runtime_of(options)
    work = {
        "predict": lambda: list(predict_items(runtime, files)),
        "bare": lambda: bare(runtime, options.count),
    }
    bare(runtime, 2 * BATCH)
    turns = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            turns[way].append(clocked(work[way]))
            print(f"running, {way}: {turns[way][-1].seconds:.1f} s", flush=True)
    return turns


def clocked(work: Callable[[], object]) -> Turn:
    """What a function took, with the processes that it started and ended."""
    before = os.times()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    cpu = sum(os.times()[:4]) - sum(before[:4])
    return Turn(seconds, cpu, 0)


def row(count: int, part: str, turns: dict[str, list[Turn]]) -> dict:
    """The medians of a part, and their shares."""
    seconds = {way: statistics.median(turn.seconds for turn in turns[way]) for way in WAYS}
    cpu = {way: statistics.median(turn.cpu_seconds for turn in turns[way]) for way in WAYS}
    return {
        "part": part,
        "images_per_second": {way: round(count / seconds[way], 1) for way in WAYS},
        "cpu_seconds": {way: round(cpu[way], 2) for way in WAYS},
        "share": round(seconds["bare"] / seconds["predict"], 3),
        "share_of_cpu": round(cpu["bare"] / cpu["predict"], 3),
        "rounds": {way: [round(turn.seconds, 2) for turn in turns[way]] for way in WAYS},
    }


def print_table(rows: list[dict]) -> None:
    """The rows in Markdown."""
    print(f"\n{cpus()} CPUs, {torch.get_num_threads()} threads, batch {BATCH}\n")
    print("| | predict, images/s | bare, images/s | share | CPU s | bare, CPU s | share |")
    print("|---|---|---|---|---|---|---|")
    for each in rows:
        rate = each["images_per_second"]
        cpu = each["cpu_seconds"]
        print(
            f"| {each['part']} | {rate['predict']} | {rate['bare']} | {each['share']:.0%} "
            f"| {cpu['predict']} | {cpu['bare']} | {each['share_of_cpu']:.0%} |"
        )


if __name__ == "__main__":
    main()
