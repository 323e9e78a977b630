"""Opening a saved ViT-B/16: vitkit, Transformers and timm, each from safetensors files of its own, seconds and memory.

    python benchmarks/load.py --output benchmarks/results/load-cpu.json

Every opening is a process of its own, with the libraries imported before the clock starts; the processes take turns. `seconds`
is from the call until the weights have been read once (a sum over all of them, so that mapping a file is not taken for reading
it); `mebibytes` is how much that raised the peak of resident memory, mapped pages of the file counted too. The file is in the
page cache. For Linux.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from side_by_side import about, write

OPEN = {
    "vitkit": (
        "import vitkit; vitkit.load",
        "model = vitkit.load({path!r}, quiet=True).model",
        "huggingface",
    ),
    "vitkit, native names": (
        "import vitkit; vitkit.load",
        "model = vitkit.load({path!r}, quiet=True).model",
        "native",
    ),
    "vitkit, timm's names": (
        "import vitkit; vitkit.load",
        "model = vitkit.load({path!r}, quiet=True).model",
        "timm",
    ),
    "transformers": (
        "from transformers import ViTForImageClassification",
        "model = ViTForImageClassification.from_pretrained({path!r})",
        "huggingface",
    ),
    "timm": (
        "import timm",
        "model = timm.create_model('local-dir:' + {path!r}, pretrained=True)",
        "timm",
    ),
}
MEASURE = """
import pathlib, re, time
{imports}
peak = lambda: int(re.search(r"VmHWM:[^0-9]+([0-9]+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
before, began = peak(), time.perf_counter()
{opens}
total = sum(float(p.detach().sum()) for p in model.parameters())
print(time.perf_counter() - began, peak() - before)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in OPEN}
    with tempfile.TemporaryDirectory() as folder:
        prepare(options.model, Path(folder))
        order = list(OPEN)
        for _ in range(options.rounds):
            for name in order:
                imports, opens, form = OPEN[name]
                code = MEASURE.format(
                    imports=imports, opens=opens.format(path=str(Path(folder) / form))
                )
                answer = subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, text=True, check=True
                ).stdout
                found[name].append(tuple(map(float, answer.split())))
            order = order[1:] + order[:1]
    medians = {name: np.median(values, 0).tolist() for name, values in found.items()}
    result = {**about("cpu", __doc__), "model": options.model, "rounds": options.rounds}
    result["median_seconds_mebibytes"] = {
        name: [round(v, 3) for v in values] for name, values in medians.items()
    }
    result["all"] = {
        name: [[round(v, 4) for v in pair] for pair in values] for name, values in found.items()
    }
    write(result, options.output)
    table = Table("opened by", "seconds", "MiB more at the peak")
    for name, (seconds, memory) in medians.items():
        table.add_row(name, f"{seconds:.3f}", f"{memory:.0f}")
    Console().print(table)


def prepare(name: str, folder: Path) -> None:
    """The same random weights in every format."""
    import torch

    from vitkit import Preprocessing
    from vitkit.models import create, vit
    from vitkit.weights import Classifier, convert

    model = create(vit(name, gelu="erf"), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    classifier = Classifier(model, Preprocessing(), tuple(map(str, range(1000))))
    for form in ("huggingface", "native", "timm"):
        convert(classifier, folder / form, form)


if __name__ == "__main__":
    main()
