"""How long all l2 values of the closed-form few-shot fit take, beside scikit-learn's Ridge, which is
fitted once for each.

The features are random: the time depends on their number alone. Both give the weights of every l2;
the largest difference between them is in the result. Peak memory is that of a process of its own.

    python benchmarks/fewshot.py --examples 10000 --width 768 --classes 1000
"""

import argparse
import multiprocessing
import resource
import time
from pathlib import Path

import numpy as np
import record
import torch
from sklearn.linear_model import Ridge

from vitkit.evaluation import targets
from vitkit.evaluation.probes.fewshot import GRID
from vitkit.evaluation.probes.ridge import ridge

PACKAGES = ("torch", "numpy", "scikit-learn", "vitkit")


def examples(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Random features (N, D), the last of them the constant 100, and classes (N,)."""
    random = np.random.default_rng(0)
    x = random.standard_normal((options.examples, options.width))
    x[:, -1] = 100
    return x, np.arange(options.examples) % options.classes


def ours(x: np.ndarray, classes: np.ndarray, count: int, exponents) -> list[np.ndarray]:
    """The weights (D, K) of every l2, from one decomposition."""
    fit = ridge(torch.from_numpy(x), targets(torch.from_numpy(classes), count))
    return [fit.weights(2.0**exponent).numpy() for exponent in exponents]


def sklearns(x: np.ndarray, classes: np.ndarray, count: int, exponents) -> list[np.ndarray]:
    """The weights (D, K) of every l2, each from a fit of its own."""
    y = targets(torch.from_numpy(classes), count).numpy()
    models = [Ridge(2.0**exponent, fit_intercept=False) for exponent in exponents]
    return [model.fit(x, y).coef_.T for model in models]


WAYS = {"vitkit": ours, "scikit-learn": sklearns}


def measure(way: str, options: argparse.Namespace) -> dict:
    """Seconds, and the peak memory beyond what the examples take, in a process of its own."""
    x, classes = examples(options)
    exponents = GRID[: options.values]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    for weights in WAYS[way](x, classes, options.classes, exponents):
        assert np.isfinite(weights).all()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": round(seconds, 3), "peak_mib": round(peak / 1024)}


def difference(options: argparse.Namespace) -> float:
    """The largest difference of the weights, relative to the largest weight, at three l2."""
    x, classes = examples(options)
    chosen = (GRID[0], GRID[len(GRID) // 2], GRID[-1])
    pairs = zip(*(way(x, classes, options.classes, chosen) for way in WAYS.values()), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def main() -> None:
    options = arguments()
    load_at_start = record.load()
    spawn = multiprocessing.get_context("spawn")
    rows = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            with spawn.Pool(1) as pool:
                rows[way].append(pool.apply(measure, (way, options)))
    best = {way: min(rows[way], key=lambda row: row["seconds"]) for way in WAYS}
    ratio = best["scikit-learn"]["seconds"] / best["vitkit"]["seconds"]
    result = {
        **record.about(
            "seconds for the ridge weights of all l2, and peak memory beyond the examples", PACKAGES
        ),
        "load_at_start_and_end": [load_at_start, record.load()],
        "values_of_l2": options.values,
        "best": best,
        "rounds": rows,
        "times_faster": round(ratio, 1),
        "largest_relative_difference": difference(options),
    }
    for way, row in best.items():
        print(f"{way:14}{row['seconds']:9.2f} s{row['peak_mib']:8,} MiB")
    print(
        f"{ratio:.1f} times faster; weights differ by {result['largest_relative_difference']:.1e}"
    )
    record.write(result, options.output)


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--values", type=int, default=len(GRID), help="of l2")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
