"""How long a change of `vitkit teach` takes once the features are computed: everything from the features, and a head
from sums over them alone. CPU time of one thread, with random features.

    python benchmarks/teaching.py --output FILE
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import record
import torch

from vitkit.evaluation import Moments, fit_probe

PACKAGES = ("torch", "numpy")
SIZES = ((300, 192, 3), (1_000, 192, 10), (1_000, 768, 10), (10_000, 192, 10), (1_000, 13_824, 10))
WIDEST = 1_000  # features of which sums are kept: XᵀX of 13,824 takes 1.5 GB


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs=3, action="append", help="images, features, classes"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    result = record.about(__doc__.partition("\n")[0], PACKAGES) | {"results": []}
    torch.set_num_threads(1)
    for size in options.sizes or SIZES:
        result["results"].append(measured(*size, options.rounds))
        print(result["results"][-1], flush=True)
        record.write(result, options.output)
    return result


def measured(images: int, width: int, classes: int, rounds: int) -> dict:
    """Both ways, for so many images of a width."""
    x = np.random.default_rng(0).normal(size=(images, width)).astype(np.float32)
    y = np.arange(images) % classes
    row = {"photographs": images, "features": width, "classes": classes}
    row["everything"] = seconds(lambda: fit_probe("linear", x, y, classes), rounds)
    if width <= WIDEST:
        rows = torch.from_numpy(x)
        moments = Moments.of(rows, torch.from_numpy(y), classes)
        added = Moments.of(rows[:1], torch.from_numpy(y[:1]), classes)
        row["from sums"] = seconds(lambda: (moments + added).centred().head(l2=1.0), rounds)
    return row


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median CPU time, in seconds."""
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return round(median(spent), 4)


if __name__ == "__main__":
    main()
