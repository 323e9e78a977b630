"""What images at their own proportions cost: images a second of one shape beside the square, and tokens a
second of pictures of mixed shapes in buckets beside the square's.

The model has random weights, which do not change its speed. Batches are measured in turns, on one thread, by
the time that the processor spends on them: other work beside it disturbs that least. The median of the rounds
counts.

    python benchmarks/proportions.py --model Ti/16 --output FILE
"""

import argparse
import time
from pathlib import Path

import numpy as np
import record
import torch

from vitkit.data import Preprocessing
from vitkit.models import create, named
from vitkit.weights import Classifier

PACKAGES = ("torch", "numpy", "vitkit")
SIDE = 224  # of the square, in patches of 16
LARGE = (240, 320)  # half as many patches again
PICTURES = ((3, 4), (4, 3), (1, 1), (2, 3), (9, 16), (3, 2), (4, 5))  # proportions, height to width


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)
    classifier = Classifier(
        create(named(options.model, classes=10), seed=0),
        Preprocessing((SIDE, SIDE), rule="native"),
        tuple("abcdefghij"),
    ).for_inference()
    batches = {
        "square": images_of([(SIDE, SIDE)], options.batch),
        "240 x 320": images_of([LARGE], options.batch),
        "mixed": mixed(classifier.preprocessing, options.batch),
    }
    prefix = classifier.model.config.prefix
    tokens = {name: prefix + sum(patches) / len(patches) for name, (_, patches) in batches.items()}

    # In turns
    torch.set_num_threads(1)
    spent = {name: [] for name in batches}
    with torch.inference_mode(), record.computing(options.precision):
        for _ in range(options.rounds):
            for name, (batch, _) in batches.items():
                began = time.process_time()
                classifier.logits(batch)
                spent[name].append(time.process_time() - began)

    # Beside the square
    speeds = {name: options.batch / float(np.median(each)) for name, each in spent.items()}
    square = speeds["square"] * tokens["square"]
    results = {}
    for name, speed in speeds.items():
        results[name] = {
            "tokens": round(tokens[name], 1),
            "images a second": round(speed, 1),
            "of the square's images a second": round(speed / speeds["square"], 3),
            "of the square's tokens a second": round(speed * tokens[name] / square, 3),
        }
        print(name, results[name], flush=True)
    content = {**about, "speeds": results}
    record.write(content, options.output)
    return content


def images_of(sizes: list[tuple[int, int]], count: int) -> tuple[torch.Tensor, list[int]]:
    """A batch of one size, uint8 (B, 3, h, w), and how many patches its images have."""
    [(height, width)] = sizes
    noise = np.random.default_rng(0).integers(0, 256, (count, 3, height, width), dtype=np.uint8)
    return torch.from_numpy(noise), [height * width // 256]


def mixed(preprocessing: Preprocessing, count: int) -> tuple[torch.Tensor, list[int]]:
    """A batch of pictures of several proportions, one after the other, as rows, and how many patches each
    has."""
    images = []
    for number in range(count):
        height, width = PICTURES[number % len(PICTURES)]
        noise = np.random.default_rng(number).integers(0, 256, (60 * height, 60 * width, 3))
        images.append(preprocessing(noise.astype(np.uint8)).numpy())
    patches = [image.shape[1] * image.shape[2] // 256 for image in images]
    return torch.from_numpy(preprocessing.together(images)), patches


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", default="Ti/16")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--output", type=Path)
    return parser


if __name__ == "__main__":
    main()
