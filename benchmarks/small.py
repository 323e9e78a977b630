"""Training batches of a small data set: three ways of vitkit, and torchvision's transforms.

    python benchmarks/small.py --data cifar10-train.parquet [--device cuda]

The task is CIFAR's augmentation, a shift by up to 4 pixels and a flip half of the time, in batches
of 512 uint8 images (--batch). Compared are images that vitkit decodes as they come, or decodes once and
gathers on the model's device, and what tutorials do: torchvision's transforms on pictures in
memory, in a DataLoader. The last rows have RandAugment, which works on one image at a time.

Prints and writes images per second that arrive on the device: the median over the rounds, with
minimum and maximum. The clock starts after the first batches. The file is
benchmarks/results/small-DATA-DEVICE.json, or --output.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import record
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as tv

from vitkit.data import Augmentation, Preprocessing, Source, decoded, open_source, train_batches

WORKERS, SIDE = 2, (32, 32)
MEMORY = 1 << 30  # bytes that decoded images may take
SHIFT = Augmentation(crop="pad_crop", pad=4)
RAND = Augmentation(crop="pad_crop", pad=4, rand_augment=(2, 9))
PACKAGES = ("vitkit", "torch", "torchvision", "pillow", "numpy")


def main() -> None:
    options = arguments()
    device = torch.device(options.device)
    load_at_start = record.load()

    # Decode everything once
    source = open_source(str(options.data))
    source.prepare()
    began = time.perf_counter()
    in_memory = decoded(source, MEMORY, WORKERS)
    seconds = time.perf_counter() - began

    # Measure every pipeline in every round
    batch = options.batch
    pipelines = {
        "decoded as they come, 2 workers": lambda: vitkit(source, SHIFT, batch, device),
        "decoded once, gathered on the device": lambda: vitkit(in_memory, SHIFT, batch, device),
        "peer: pictures in memory, torchvision, 2 workers": lambda: torchvision(in_memory, batch),
        "RandAugment, decoded as they come, 2 workers": lambda: vitkit(source, RAND, batch, device),
        "RandAugment, decoded once, 2 workers": lambda: vitkit(in_memory, RAND, batch, device),
    }
    rates = measure(pipelines, options.rounds, options.steps, device)

    # Write it down
    result = {
        **record.about(
            "training batches of 32 x 32 images, images a second", PACKAGES, options.device
        ),
        "load_at_start_and_end": [load_at_start, record.load()],
        "images": len(source),
        "seconds_to_decode_all": round(seconds, 1),
        "results": [row(name, values) for name, values in rates.items()],
    }
    show(result)
    output = options.output
    if output is None:
        name = f"small-{options.data.stem}-{device.type}.json"
        output = Path(__file__).parent / "results" / name
    record.write(result, output)
    print(f"wrote {output}")


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="a parquet file or folder of 32 x 32 images"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60, help="batches that are timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="file for the results, JSON")
    return parser.parse_args()


# The pipelines


def vitkit(
    source: Source, augmentation: Augmentation, batch: int, device: torch.device
) -> Iterator:
    """vitkit's batches; images that are decoded already are gathered on the device if they can."""
    preprocessing = Preprocessing(size=SIDE)
    return train_batches(
        source, augmentation, preprocessing, batch, seed=0, after=0, workers=WORKERS, device=device
    )


class Pictures(Dataset):
    """Decoded images as Pillow images, as torchvision's CIFAR10 returns them."""

    def __init__(self, source: Source, transform: tv.Compose):
        self.source = source
        self.transform = transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int):
        pixels, label = self.source[i]
        return self.transform(Image.fromarray(pixels)), label


def torchvision(source: Source, batch: int) -> Iterator:
    """The same augmentation by torchvision, in a DataLoader."""
    steps = [tv.RandomCrop(32, padding=4), tv.RandomHorizontalFlip(), tv.PILToTensor()]
    dataset = Pictures(source, tv.Compose(steps))
    return iter(DataLoader(dataset, batch, shuffle=True, num_workers=WORKERS, drop_last=True))


# The measurement


def measure(
    pipelines: dict[str, Callable[[], Iterator]], rounds: int, steps: int, device: torch.device
) -> dict[str, list[float]]:
    """The rate of every pipeline in every round."""
    rates = {name: [] for name in pipelines}
    for _ in range(rounds):
        for name, start in pipelines.items():
            rates[name].append(rate(start(), steps, device))
    return rates


def rate(stream: Iterator, steps: int, device: torch.device) -> float:
    """Images per second that arrive on the device."""
    for _ in islice(stream, 2 * WORKERS + 1):  # those that workers have prepared ahead
        pass
    images = 0
    began = time.perf_counter()
    for batch in islice(stream, steps):
        batch[0].to(device, non_blocking=True)
        images += len(batch[0])
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    if hasattr(stream, "close"):
        stream.close()
    return images / seconds


def row(name: str, rates: list[float]) -> dict:
    """A pipeline's row of the results."""
    return {
        "pipeline": name,
        "images_per_second": round(median(rates)),
        "min_max": [round(min(rates)), round(max(rates))],
    }


def show(result: dict) -> None:
    for row in result["results"]:
        low, high = row["min_max"]
        print(f"{row['pipeline']:52}{row['images_per_second']:>9,}  {low:,} to {high:,}")
    seconds = result["seconds_to_decode_all"]
    print(f"decoding all {result['images']:,} once took {seconds:.1f} s")


if __name__ == "__main__":
    main()
