"""How fast features are extracted from images in files, beside the bare forward of the same model
over batches that are decoded already.

The two alternate, in rounds; what the cache does is left out of both. The ratio is what decoding,
loading and gathering cost. On a machine with other work the processor's time says more: that of
extraction has the worker's in it.

    python benchmarks/features.py --model MODEL --data DATA
"""

import argparse
import os
import time
from pathlib import Path
from statistics import median

import record
import torch

from vitkit.data import eval_batches, open_source, subset
from vitkit.evaluation import compute_features
from vitkit.weights import load

PACKAGES = ("torch", "numpy", "pillow", "vitkit")


def main() -> None:
    options = arguments()
    load_at_start = record.load()
    classifier = load(options.model).for_inference()
    source = open_source(options.data)
    if options.images:
        source = subset(source, range(min(options.images, len(source))))
    batches = list(eval_batches(source, classifier.preprocessing, options.batch, 0))

    def bare() -> None:
        for batch in batches:
            classifier.features(batch.images)

    def extract() -> None:
        compute_features(classifier, source, cached=False)

    bare()  # once, so that memory is there
    rates = {"forward": [], "features": []}
    cpu = {"forward": [], "features": []}
    for _ in range(options.rounds):
        for name, function in (("forward", bare), ("features", extract)):
            began = time.perf_counter()
            cpu_began = cpu_seconds()
            function()
            rates[name].append(len(source) / (time.perf_counter() - began))
            cpu[name].append(1000 * (cpu_seconds() - cpu_began) / len(source))

    ratios = [f / b for f, b in zip(rates["features"], rates["forward"], strict=True)]
    result = {
        **record.about(
            "images a second of feature extraction from files, beside the bare forward", PACKAGES
        ),
        "threads": torch.get_num_threads(),
        "load_at_start_and_end": [load_at_start, record.load()],
        "images": len(source),
        "images_per_second": {name: round(median(values), 1) for name, values in rates.items()},
        "cpu_ms_an_image": {name: round(median(values), 2) for name, values in cpu.items()},
        "rounds": {name: [round(value, 1) for value in values] for name, values in rates.items()},
        "ratio": round(median(ratios), 3),
        "ratio_of_each_round": [round(ratio, 3) for ratio in ratios],
    }
    for name in rates:
        print(
            f"{name:10}{result['images_per_second'][name]:8.1f} images/s"
            f"{result['cpu_ms_an_image'][name]:8.1f} ms of CPU an image"
        )
    print(f"ratio {result['ratio']} (of each round {result['ratio_of_each_round']})")
    record.write(result, options.output)


def cpu_seconds() -> float:
    """Processor time of this process and of its workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="a model, as vitkit evaluate takes it")
    parser.add_argument("--data", required=True, help="images, as vitkit evaluate takes them")
    parser.add_argument("--images", type=int, default=0, help="the first ones alone; 0 is all")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
