"""What each figure of inspection costs, in time and memory, beside a forward pass of the same images.

In a round every figure, the forward pass, and one that keeps all attention (`recording`) have one
turn each; every round begins with another one. Ratios are those of medians. Memory is the largest
that a process of its own has had, above one that has done the forward pass alone; on a GPU, what
PyTorch had allocated.

    python benchmarks/inspection.py --models Ti/16 B/16 --batch 8
    python benchmarks/inspection.py --models B/16 --image 512 --batch 1
"""

import argparse
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import record
import torch
from rich.console import Console
from rich.table import Table
from side_by_side import seconds
from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.inspection import (
    alignment,
    attention_distance,
    attention_entropy,
    class_relevance,
    filter_components,
    gradient_rollout,
    patch_similarity,
    position_similarity,
    raw_attention,
    rollout,
    token_colours,
    token_norms,
)
from vitkit.models import create, named, recording
from vitkit.weights import Classifier

PACKAGES = ("vitkit", "torch")
FORWARD = "forward"
VISIBLE = "all attention kept"
Work = Callable[[Classifier, Tensor], object]


def visible(classifier: Classifier, images: Tensor) -> None:
    """A forward pass that keeps the attention of all layers: what figures would cost at least if
    they were made of that."""
    with recording(classifier.model):
        classifier.logits(images)


WORK: dict[str, Work] = {
    FORWARD: lambda classifier, images: classifier.logits(images),
    VISIBLE: visible,
    "filters": lambda classifier, images: filter_components(classifier),
    "positions": lambda classifier, images: position_similarity(classifier),
    "distance": attention_distance,
    "entropy": attention_entropy,
    "rollout": rollout,
    "attention of a layer": lambda classifier, images: raw_attention(classifier, images, 0),
    "relevance": class_relevance,
    "gradient rollout": gradient_rollout,
    "norms": token_norms,
    "similarity": patch_similarity,
    "colours": token_colours,
    "alignment": alignment,
}
FEWEST = {"alignment": 4}
"""Images that a figure needs at least."""


def main() -> None:
    options = arguments()
    if options.peak:
        print(json.dumps(peak_of(options)))
        return
    result = {
        **record.about(__doc__.partition("\n")[0], PACKAGES, options.device),
        "threads": torch.get_num_threads(),
        "load_at_start_and_end": [record.load(), record.load()],
        "results": [],
    }
    for name in options.models:
        rows = measured(name, options)
        result["results"] += rows
        result["load_at_start_and_end"][1] = record.load()
        record.write(result, options.output)
        show(name, rows, options)


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["Ti/16", "B/16"])
    parser.add_argument("--image", type=int, default=224, help="side in pixels")
    parser.add_argument("--batch", type=int, default=8, help="images that each figure is made of")
    parser.add_argument("--figures", nargs="+", default=[], help="these alone; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--peak", help="used by the script itself: one figure, for its memory")
    parser.add_argument("--output", type=Path, help="a JSON file, written after every model")
    return parser.parse_args()


def subject(name: str, options: argparse.Namespace) -> tuple[Classifier, Tensor]:
    """A model of this name with random weights, and images for it."""
    size = (options.image, options.image)
    config = named(name, image=size, classes=1000)
    model = create(config, seed=0).eval().to(options.device)
    labels = tuple(map(str, range(1000)))
    classifier = Classifier(model, Preprocessing(size=size), labels)
    generator = torch.Generator().manual_seed(0)
    shape = (options.batch, 3, *size)
    images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return classifier, images.to(options.device)


def measured(name: str, options: argparse.Namespace) -> list[dict]:
    """A row for each figure of a model."""
    classifier, images = subject(name, options)
    works = chosen(options)

    # Time, in turns; the first round warms up
    times = {each: [] for each in works}
    order = list(works)
    for round_ in range(options.rounds + 1):
        for each in order:
            took = seconds(lambda each=each: works[each](classifier, images), 1, options.device)
            if round_:
                times[each].append(took)
        order = order[1:] + order[:1]

    # Memory, in a process for each
    peaks = {each: peak_in_a_process(name, each, options) for each in works}

    rows = []
    for each in works:
        milliseconds = 1000 * median(times[each])
        row = {"model": name, "image": options.image, "batch": options.batch, "figure": each}
        row["milliseconds"] = round(milliseconds, 2)
        row["times_a_forward_pass"] = round(median(times[each]) / median(times[FORWARD]), 3)
        row["times_all_attention_kept"] = round(median(times[each]) / median(times[VISIBLE]), 3)
        row["mebibytes_above_forward"] = round((peaks[each] - peaks[FORWARD]) / 2**20, 1)
        row["rounds_milliseconds"] = [round(1000 * took, 2) for took in times[each]]
        rows.append(row)
    return rows


def chosen(options: argparse.Namespace) -> dict[str, Work]:
    """What is measured: the two to compare with, and the figures for which there are enough
    images."""
    works = {}
    for name, work in WORK.items():
        wanted = not options.figures or name in (FORWARD, VISIBLE, *options.figures)
        if wanted and options.batch >= FEWEST.get(name, 1):
            works[name] = work
    return works


def peak_in_a_process(name: str, figure: str, options: argparse.Namespace) -> int:
    """The most bytes that a process has had that made one figure after a forward pass."""
    words = ["--models", name, "--image", options.image, "--batch", options.batch]
    words += ["--device", options.device, "--peak", figure]
    command = [sys.executable, __file__, *map(str, words)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(run.stdout))


def peak_of(options: argparse.Namespace) -> int:
    """The most bytes that this process has had after a forward pass and one figure."""
    classifier, images = subject(options.models[0], options)
    WORK[FORWARD](classifier, images)
    WORK[options.peak](classifier, images)
    if options.device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(options.device)
    # Linux's own count of the process; getrusage's begins with what its parent had when it was started
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(re.search(r"VmHWM:\s+([0-9]+)", status.read_text())[1])
    unit = 1024
    if sys.platform == "darwin":  # which counts bytes
        unit = 1
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def show(name: str, rows: list[dict], options: argparse.Namespace) -> None:
    """Print a model's rows as a table."""
    title = f"{name} at {options.image} pixels, {options.batch} images"
    columns = ("figure", "ms", "of a forward pass", "of all attention kept", "MiB more")
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(
            row["figure"],
            f"{row['milliseconds']:,.1f}",
            f"{row['times_a_forward_pass']:.2f}",
            f"{row['times_all_attention_kept']:.2f}",
            f"{row['mebibytes_above_forward']:,.0f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
