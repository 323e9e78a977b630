"""Opening a saved ViT-B/16 in vitkit, Transformers and timm: seconds and memory.

    python benchmarks/load.py --output benchmarks/results/load-cpu.json

Each library opens safetensors files of its own format, with the same weights. Every opening is a
process of its own that has imported the libraries before the clock starts; the processes take
turns. The file is in the page cache. For Linux.

Prints and writes the medians of two numbers:

- seconds, from the call until the weights have been read once: a sum over all of them, so that
  mapping a file is not taken for reading it;
- MiB, by which that raised the peak of resident memory. Mapped pages of the file count too.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from record import parser, write
from rich.console import Console
from rich.table import Table
from side_by_side import about

from vitkit import Preprocessing
from vitkit.models import create, vit
from vitkit.weights import Classifier
from vitkit.weights.proof import convert_weights


class Way(NamedTuple):
    """How a library opens a model."""

    format: str
    """What it is saved as, by vitkit."""
    imports: str
    """What is imported before the clock starts."""
    opens: str
    """The code that is timed, which makes a `model` of the files at `path`."""


VITKIT = ("import vitkit; vitkit.load", "model = vitkit.load(path, quiet=True).model")
WAYS = {
    "vitkit": Way("huggingface", *VITKIT),
    "vitkit, native names": Way("native", *VITKIT),
    "vitkit, timm's names": Way("timm", *VITKIT),
    "transformers": Way(
        "huggingface",
        "from transformers import ViTForImageClassification",
        "model = ViTForImageClassification.from_pretrained(path)",
    ),
    "timm": Way(
        "timm",
        "import timm",
        "model = timm.create_model('local-dir:' + path, pretrained=True)",
    ),
}
MEASURE = """
import pathlib, re, time
{imports}

def peak():  # of resident memory, in MiB
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:[^0-9]+([0-9]+)", status)[1]) / 1024

path = {path!r}
before, began = peak(), time.perf_counter()
{opens}
total = sum(float(p.detach().sum()) for p in model.parameters())
print(time.perf_counter() - began, peak() - before)
"""


class Opening(NamedTuple):
    """What one opening took."""

    seconds: float
    mebibytes: float


def main() -> None:
    options = arguments()
    openings: dict[str, list[Opening]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        save_everywhere(options.model, Path(folder))
        order = list(WAYS)
        for _ in range(options.rounds):
            for name in order:
                openings[name].append(opened(WAYS[name], Path(folder)))
            order = order[1:] + order[:1]

    medians = {}
    for name, measured in openings.items():
        medians[name] = Opening(*(median(values) for values in zip(*measured, strict=True)))
    write(result_of(options, openings, medians), options.output)
    show(medians)


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--model", default="B/16")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--output", type=Path, help="a JSON file for the results")
    return options.parse_args()


def save_everywhere(name: str, folder: Path) -> None:
    """Save a model with random weights in every format."""
    model = create(vit(name, gelu="erf"), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    classifier = Classifier(model, Preprocessing(), tuple(map(str, range(1000))))
    for format in {way.format for way in WAYS.values()}:
        convert_weights(classifier, folder / format, format)


def opened(way: Way, folder: Path) -> Opening:
    """Open the model once, in a process of its own."""
    path = str(folder / way.format)
    code = MEASURE.format(imports=way.imports, path=path, opens=way.opens)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Opening(*map(float, run.stdout.split()))


def result_of(
    options: argparse.Namespace,
    openings: dict[str, list[Opening]],
    medians: dict[str, Opening],
) -> dict:
    """What the results file holds."""
    result = {**about("cpu", __doc__), "model": options.model, "rounds": options.rounds}
    result["median_seconds_mebibytes"] = {}
    result["all"] = {}
    for name in WAYS:
        result["median_seconds_mebibytes"][name] = [round(value, 3) for value in medians[name]]
        result["all"][name] = []
        for opening in openings[name]:
            result["all"][name].append([round(value, 4) for value in opening])
    return result


def show(medians: dict[str, Opening]) -> None:
    """Print the medians as a table."""
    table = Table("opened by", "seconds", "MiB more at the peak")
    for name, opening in medians.items():
        table.add_row(name, f"{opening.seconds:.3f}", f"{opening.mebibytes:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
