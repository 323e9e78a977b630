"""`vitkit serve` under load, over loopback, beside the bare forward pass of the same model and batch.

    bare      the model's runtime on batches that lie prepared in memory
    prepared  the same with reading, decoding and resizing, by threads of this process
    served    the server, a process of its own, asked by clients that each wait for their answer

They take turns, round after round: images a second, and their ratios to the bare forward. Of the
served: latency (p50, p95, p99), requests that were not answered, and the server's memory after each
round. Clients, server and model share the CPUs of this machine, as `taskset` gives them.

    python benchmarks/serve.py --model model.onnx --images val.parquet --clients 32 --seconds 20

The clients are asyncio's streams with the requests' bytes made beforehand: locust and httpx take
several times the CPU of the server's own HTTP for each request, on the CPUs that are measured; wrk
sends one file again and again, and its Lua scripts cannot tell whether an answer was right.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import record

from vitkit.apps.serve.functions.serve import open_model
from vitkit.prediction import Item, prepare
from vitkit.runtimes import Runtime
from vitkit.system.machine import cpus


def main() -> None:
    options = arguments()
    images = pq.read_table(options.images).column("image").to_pylist()
    files = [image["bytes"] for image in images[: options.count]]
    runtime = open_model(options.model, precision=options.precision, device="cpu")
    batch = prepared(runtime, files[: options.batch])

    # In turns
    turns = {"bare": [], "prepared": [], "served": []}
    loads = []
    with serving(options) as (port, process):
        for _ in range(options.rounds):
            turns["bare"].append(rate(lambda: bare(runtime, batch), options.seconds))
            turns["prepared"].append(rate(lambda: whole(runtime, files, options), options.seconds))
            load = asyncio.run(under_load(port, files, options))
            turns["served"].append(load["images_per_second"])
            loads.append(load | {"memory_mb": memory(process.pid)})

    # What they say
    medians = {name: round(statistics.median(rates), 2) for name, rates in turns.items()}
    shares = {name: round(value / medians["bare"], 3) for name, value in medians.items()}
    for name, value in medians.items():
        print(f"{name:9} {value:8.1f} images/s   {shares[name]:6.1%} of the bare forward")
    for load in loads:
        print(json.dumps(load))
    result = {
        **record.about(
            "vitkit serve beside the bare forward pass",
            ("torch", "onnxruntime", "openvino", "fastapi", "uvicorn", "vitkit"),
        ),
        "load": record.load(),
        "batch": options.batch,
        "clients": options.clients,
        "medians": medians,
        "shares": shares,
        "rounds": loads,
    }
    record.write(result, options.output)


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    record.model_arguments(parser)
    parser.add_argument("--count", type=int, default=200, help="photographs to send")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--clients", type=int, default=24, help="that ask at once")
    parser.add_argument("--seconds", type=float, default=10, help="of a turn")
    return parser.parse_args()


# Without a server


def prepared(runtime: Runtime, files: list[bytes]) -> np.ndarray:
    """uint8 (B, 3, h, w)"""
    items = [Item(str(i), lambda data=data: data) for i, data in enumerate(files)]
    return prepare(runtime.preprocessing, items).images


def bare(runtime: Runtime, batch: np.ndarray) -> int:
    """A forward pass; returns its images."""
    runtime.logits(batch)
    return len(batch)


def whole(runtime: Runtime, files: list[bytes], options: argparse.Namespace) -> int:
    """All files once, decoded by threads while the model computes; returns how many."""
    chunks = [files[i : i + options.batch] for i in range(0, len(files), options.batch)]
    with ThreadPoolExecutor(cpus()) as threads:
        for batch in threads.map(lambda chunk: prepared(runtime, chunk), chunks):
            runtime.logits(batch)
    return len(files)


def rate(turn: Callable[[], int], seconds: float) -> float:
    """Images a second of turns that take so long together; the first turn is not counted."""
    turn()
    images = 0
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        images += turn()
    return images / took


# With one


@contextmanager
def serving(options: argparse.Namespace):
    """A process that serves the model: its port, and the process."""
    words = ["serve", options.model, "--port", "0", "--batch", str(options.batch)]
    words += ["--precision", options.precision, "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vitkit", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = int(re.search(r":(\d+) ", process.stdout.readline())[1])
        yield port, process
    finally:
        process.terminate()
        process.communicate()


def memory(pid: int) -> float:
    """Megabytes that a process holds now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000, 1)


async def under_load(port: int, files: list[bytes], options: argparse.Namespace) -> dict:
    """Clients that ask one after the other, for some seconds; what they saw."""
    requests = []
    for data in files:
        head = f"POST /predict?top=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
        requests.append(f"{head}Content-Type: image/jpeg\r\n\r\n".encode() + data)
    latencies = []
    wrong = []
    ends = time.perf_counter() + options.seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = number
        while time.perf_counter() < ends:
            began = time.perf_counter()
            writer.write(requests[asked % len(requests)])
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head)[1])
            body = json.loads(await reader.readexactly(length))
            latencies.append(time.perf_counter() - began)
            if b" 200 " not in head[:16] or len(body["predictions"]) != 1:
                wrong.append(head[:16].decode())
            asked += options.clients
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(options.clients)))
    took = time.perf_counter() - began
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99]) * 1000
    return {
        "images_per_second": round(len(latencies) / took, 2),
        "answers": len(latencies),
        "not_answered": len(wrong),
        "p50_ms": round(p50, 1),
        "p95_ms": round(p95, 1),
        "p99_ms": round(p99, 1),
    }


if __name__ == "__main__":
    main()
