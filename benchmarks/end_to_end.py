"""What somebody waits for, whole processes from their start: vitkit's commands beside what people
would run instead (peers.py: short scripts with timm, and with Transformers' pipeline and Trainer).

    cold      one photograph
    predict   a folder of photographs, twice those of --images
    evaluate  the accuracy on the photographs of --images
    finetune  --steps steps of batch 32 on --train, from the same weights

The processes take turns, round after round; a figure is the median of its rounds, and a ratio is one
of medians. Accuracies are printed beside the times: what is fast must be right too. Transformers
reads a directory that `vitkit convert` writes, and its weights are those of --model.

    python benchmarks/end_to_end.py --model timm.safetensors --images val.parquet --train own-train.parquet
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import record

PACKAGES = ("torch", "timm", "transformers", "pillow", "vitkit")
PEERS = Path(__file__).parent / "peers.py"
TASKS = ("cold", "predict", "evaluate", "finetune")


class Contender(NamedTuple):
    """A process that does a task."""

    task: str
    name: str
    words: list[str]


class Turn(NamedTuple):
    """What a process took."""

    seconds: float
    cpu_seconds: float
    megabytes: float


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        contenders = prepared(options, Path(folder))
        turns = take_turns(contenders, options.rounds)
    rows = [row(contender, turns[contender[:2]]) for contender in contenders]
    print_table(rows)
    result = {
        **record.about("seconds of whole processes, from start to end", PACKAGES),
        "load": record.load(),
        "rounds": options.rounds,
        "results": rows,
    }
    record.write(result, options.output)


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="timm's ViT-Ti/16, a safetensors file")
    parser.add_argument("--images", required=True, help="parquet of photographs with labels")
    parser.add_argument("--train", required=True, help="parquet of photographs to fine-tune on")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--limit", type=int, default=0, help="images at most; 0 is all")
    parser.add_argument("--steps", type=int, default=20, help="of the fine-tuning")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="file for the results, JSON")
    return parser.parse_args()


def prepared(options: argparse.Namespace, folder: Path) -> list[Contender]:
    """The processes of the tasks; writes the files that they read."""
    # The photographs, twice as files; and those of the limit as a data set
    table = pq.read_table(options.images)
    if options.limit:
        table = table.slice(0, options.limit)
    images = folder / "images.parquet"
    pq.write_table(table, images)
    files = folder / "files"
    files.mkdir()
    for i, image in enumerate(table.column("image").to_pylist()):
        for copy in (1, 2):
            (files / f"{copy}-{i:05}.jpg").write_bytes(image["bytes"])
    one = files / "1-00000.jpg"
    for part in ("train", "test"):
        path = Path(options.train.replace("-train", f"-{part}"))
        (folder / f"own-{part}.parquet").write_bytes(path.read_bytes())

    # The same weights in Transformers' format
    theirs = folder / "transformers"
    vitkit = [sys.executable, "-m", "vitkit"]
    convert = [*vitkit, "convert", options.model, str(theirs), "--to", "huggingface"]
    subprocess.run(convert, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    # Each task's command and scripts
    model = str(options.model)
    steps = str(options.steps)
    own = str(folder / "own")
    run_dir = str(folder / "run")
    finetune = ["finetune", model, own, "--workdir", run_dir, "--length", steps]
    finetune += ["--optim.warmup", "1"]
    ours = {
        "cold": ["predict", model, str(one)],
        "predict": ["predict", model, str(files), "--json"],
        "evaluate": ["evaluate", model, str(images)],
        "finetune": finetune,
    }
    given = {"cold": str(one), "predict": str(files), "evaluate": str(images), "finetune": own}
    contenders = []
    for task in options.tasks:
        contenders.append(Contender(task, "vitkit", [*vitkit, *ours[task]]))
        if task == "evaluate":
            words = [*vitkit, *ours[task], "--precision", "auto"]
            contenders.append(Contender(task, "vitkit, --precision auto", words))
        for library, weights in (("timm", model), ("transformers", str(theirs))):
            words = [sys.executable, str(PEERS), library, task, weights, given[task], steps]
            contenders.append(Contender(task, library, words))
    return contenders


def take_turns(contenders: list[Contender], rounds: int) -> dict[tuple[str, str], list[Turn]]:
    """What each process took in each round. The first one of all warms up the disk's cache."""
    turns = {contender[:2]: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            turn = timed(contender)
            turns[contender[:2]].append(turn)
            print(f"{contender.task} {contender.name}: {turn.seconds:.1f} s", flush=True)
    return turns


def timed(contender: Contender) -> Turn:
    """Run a process to its end. Raises RuntimeError, with what it said, if it fails."""
    if "--workdir" in contender.words:  # a finished run would not be run again
        run_dir = contender.words[contender.words.index("--workdir") + 1]
        subprocess.run(["rm", "-rf", run_dir], check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(contender.words, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(
            status
        )  # it was waited for here, not by Popen
        if status:
            said.seek(0)
            raise RuntimeError(f"{contender.name} failed: {said.read()[-2000:].decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(seconds, cpu, usage.ru_maxrss / 1024)


def row(contender: Contender, turns: list[Turn]) -> dict:
    """The medians of a process, and all its times."""
    return {
        "task": contender.task,
        "name": contender.name,
        "seconds": statistics.median(turn.seconds for turn in turns),
        "cpu_seconds": statistics.median(turn.cpu_seconds for turn in turns),
        "megabytes": statistics.median(turn.megabytes for turn in turns),
        "rounds": [turn.seconds for turn in turns],
    }


def print_table(rows: list[dict]) -> None:
    """The rows in Markdown, each with how many times the time of vitkit it took."""
    ours = {row["task"]: row["seconds"] for row in rows if row["name"] == "vitkit"}
    print("\n| task | | seconds | CPU seconds | MB | times vitkit's |\n|---|---|---|---|---|---|")
    for each in rows:
        ratio = each["seconds"] / ours[each["task"]]
        print(
            f"| {each['task']} | {each['name']} | {each['seconds']:.1f} | {each['cpu_seconds']:.1f} "
            f"| {each['megabytes']:.0f} | {ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
