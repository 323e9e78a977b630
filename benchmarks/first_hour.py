"""From a folder of photographs to a model: how good it is after how many seconds, counted from the
start of the process, beside what people would run instead (first_hour_peers.py: Transformers'
Trainer, timm, and scikit-learn on features).

All begin with the same weights, learn from the same images, and are measured on the same test
images, one after the other with the whole machine. vitkit goes first, with --minutes for its
fine-tuning; its own evaluations are in its time. The peers get as long as it took to its last
model, or --minutes if that is longer, and their evaluations do not count. A point is a saved model.

    python benchmarks/first_hour.py --model timm.safetensors --data FOLDER --sets ants_bees eurosat_1k

FOLDER has NAME-train.parquet and NAME-test.parquet for every set.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import record

PACKAGES = ("torch", "timm", "transformers", "scikit-learn", "pillow", "vitkit")
PEERS = Path(__file__).parent / "first_hour_peers.py"
LIBRARIES = ("transformers", "timm", "scikit-learn")
POLLED = 0.05  # seconds between two looks at the model of vitkit


def main() -> None:
    options = arguments()
    result = {
        **record.about(
            "[seconds since the process was started, accuracy on test images] of models", PACKAGES
        ),
        "minutes": options.minutes,
        "results": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        theirs = str(Path(folder) / "transformers")
        convert = ["convert", options.model, theirs, "--to", "huggingface"]
        ended(started([*vitkit(), *convert], Path(folder)), Path(folder), "vitkit convert")
        for name in options.sets:
            result["results"].append(measured(options, name, Path(folder) / name, theirs))
            record.write(result, options.output)
    print_tables(result["results"])


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="timm's ViT-Ti/16, a safetensors file")
    parser.add_argument("--data", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--sets", nargs="+", required=True, help="names of data sets there")
    parser.add_argument("--libraries", nargs="*", default=LIBRARIES, choices=LIBRARIES)
    parser.add_argument("--minutes", type=float, default=2, help="vitkit's, for its fine-tuning")
    parser.add_argument("--images", type=int, default=0, help="to learn from at most; 0 is all")
    parser.add_argument("--tested", type=int, default=400, help="test images at most; 0 is all")
    parser.add_argument("--points", type=int, default=8, help="evaluations of a peer")
    parser.add_argument("--output", type=Path, help="file for the results, JSON")
    return parser.parse_args()


def measured(options: argparse.Namespace, name: str, folder: Path, theirs: str) -> dict:
    """What every contender reached on a data set."""
    # The same images for everybody
    folder.mkdir()
    own = folder / name
    counts = {}
    for part, limit in (("train", options.images), ("test", options.tested)):
        table = pq.read_table(options.data / f"{name}-{part}.parquet")
        rows = np.random.default_rng(0).permutation(len(table))
        table = table.take(np.sort(rows[: limit or len(table)]))
        pq.write_table(table, f"{own}-{part}.parquet")
        counts[part] = len(table)

    # vitkit first: the peers get as long
    row = {"set": name, **counts, "load": [record.load()]}
    row["vitkit"] = by_vitkit(options.model, own, options.minutes, folder)
    seconds = max(60 * options.minutes, row["vitkit"]["points"][-1][0])
    row["seconds"] = seconds
    show(name, "vitkit", row["vitkit"])
    for library in options.libraries:
        weights = options.model
        if library == "transformers":
            weights = theirs
        row["load"].append(record.load())
        words = [library, weights, str(own), str(seconds), str(options.points)]
        row[library] = by_peer(words, folder)
        show(name, library, row[library])
    return row


def vitkit() -> list[str]:
    return [sys.executable, "-m", "vitkit"]


def by_vitkit(model: str, own: Path, minutes: float, folder: Path) -> dict:
    """`vitkit finetune` on a data set: its models, and when it ended."""
    run_dir = folder / "run"
    weights = run_dir / "model" / "model.safetensors"
    words = [*vitkit(), "finetune", model, str(own), "--minutes", f"{minutes:g}"]
    began = time.time()
    process = started([*words, "--workdir", str(run_dir)], folder)

    # When a model was saved
    saved = []
    while process.poll() is None:
        try:
            written = weights.stat().st_mtime - began
        except FileNotFoundError:
            written = None
        if written is not None and written not in saved:
            saved.append(written)
        time.sleep(POLLED)
    seconds = time.time() - began
    output = ended(process, folder, "vitkit finetune")
    sentences = [line for line in output.splitlines() if line.isascii()]  # not the table

    # How good they are
    reached = json.loads((run_dir / "answer.json").read_text())
    accuracies = {name: round(metric["value"], 4) for name, metric in reached["test"].items()}
    points = [[round(saved[0], 2), accuracies["closed form"]]]
    if reached["chosen"] != "closed form":
        points.append([round(saved[-1], 2), accuracies[reached["chosen"]]])
    return {
        "points": points,
        "ended": round(seconds, 2),
        "chosen": reached["chosen"],
        "said": [sentence.replace(str(folder), ".") for sentence in sentences],
    }


def by_peer(words: list[str], folder: Path) -> dict:
    """A peer on a data set: its models, and when it ended."""
    began = time.monotonic()
    process = started([sys.executable, str(PEERS), *words, str(began)], folder)
    output = ended(process, folder, words[0])
    lines = [line for line in output.splitlines() if line.startswith("[")]
    points = [json.loads(line) for line in lines]
    return {"points": points, "ended": round(time.monotonic() - began, 2)}


def started(words: list[str], folder: Path) -> subprocess.Popen:
    """A process with an empty cache, all CPUs, and nothing from the network; it writes to files."""
    environment = os.environ | {"VITKIT_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    environment.pop("OMP_NUM_THREADS", None)
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        return subprocess.Popen(words, stdout=stdout, stderr=stderr, env=environment)


def ended(process: subprocess.Popen, folder: Path, name: str) -> str:
    """What a process wrote, after it has ended. Raises RuntimeError if it failed."""
    if process.wait():
        said = (folder / "stderr").read_text()[-2000:]
        raise RuntimeError(f"{name} failed: {said}")
    return (folder / "stdout").read_text()


def show(name: str, contender: str, reached: dict) -> None:
    points = ", ".join(
        f"{100 * value:.1f} after {seconds:.0f}" for seconds, value in reached["points"]
    )
    print(f"{name} {contender}: {points} s; ended after {reached['ended']:.0f} s", flush=True)


# Tables


def best(points: list) -> float:
    """The highest accuracy of a contender."""
    return max(value for _, value in points)


def earliest(points: list, accuracy: float) -> float | None:
    """When a contender was that good for the first time; None if it never was."""
    for seconds, value in points:
        if value >= accuracy:
            return seconds
    return None


def print_tables(rows: list[dict]) -> None:
    """The results in Markdown: what each reached, and when vitkit was as good as each peer."""
    print("\n| set | | first saved model | last | time |\n|---|---|---|---|---|")
    for row in rows:
        for name in contenders(row):
            points = row[name]["points"]
            seconds, value = points[0]
            print(
                f"| {row['set']} | {name} | {100 * value:.1f} % after {seconds:.0f} s "
                f"| {100 * points[-1][1]:.1f} % | {points[-1][0]:.0f} s |"
            )
    print("\n| set | peer | its best | after | vitkit as good after | times faster |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        for name in contenders(row)[1:]:
            print(comparison(row, name))


def contenders(row: dict) -> list[str]:
    return [name for name in ("vitkit", *LIBRARIES) if name in row]


def comparison(row: dict, peer: str) -> str:
    """A peer's best accuracy, when it had it, and when vitkit did."""
    accuracy = best(row[peer]["points"])
    theirs = earliest(row[peer]["points"], accuracy)
    ours = earliest(row["vitkit"]["points"], accuracy)
    words = [row["set"], peer, f"{100 * accuracy:.1f} %", f"{theirs:.0f} s"]
    if ours is None:
        words += ["never", ""]
    else:
        words += [f"{ours:.0f} s", f"{theirs / ours:.1f}"]
    return f"| {' | '.join(words)} |"


if __name__ == "__main__":
    main()
