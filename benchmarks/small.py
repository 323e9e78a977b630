"""Training batches of a small data set: decoded as they come, decoded once, and gathered on the model's device.

    python benchmarks/small.py --data cifar10-train.parquet [--device cuda]

CIFAR's augmentation (a shift by up to 4 pixels, mirrored half the time) in batches of 512 uint8 images; with RandAugment,
which works on one image at a time, in the last rows. The peer is what tutorials do: torchvision's transforms on pictures
in memory, in a DataLoader. The clock starts after the first batches; printed and written: the median over the rounds with
minimum and maximum.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from loader import machine, versions
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as tv

from vitkit.data import Augmentation, Preprocessing, Source, decoded, open_source, train_batches

BATCH, WORKERS, SIDE = 512, 2, (32, 32)
SHIFT = Augmentation(crop="pad_crop", pad=4)
RAND = Augmentation(crop="pad_crop", pad=4, rand_augment=(2, 9))


class Pictures(Dataset):
    """Pictures in memory, as torchvision's CIFAR10 holds them."""

    def __init__(self, source: Source, transform: tv.Compose):
        self.source, self.transform = source, transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int):
        pixels, label = self.source[i]
        return self.transform(Image.fromarray(pixels)), label


def peer(source: Source, *more) -> Iterator:
    steps = [tv.RandomCrop(32, padding=4), tv.RandomHorizontalFlip(), *more, tv.PILToTensor()]
    dataset = Pictures(source, tv.Compose(steps))
    return iter(DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True))


def ours(source: Source, how: Augmentation, place: torch.device) -> Iterator:
    return train_batches(source, how, Preprocessing(size=SIDE), BATCH, 0, 0, WORKERS, device=place)


def rate(stream: Iterator, steps: int, place: torch.device) -> float:
    """Images a second that arrive on the device."""
    for _ in islice(stream, 2 * WORKERS + 1):
        pass
    began, got = time.perf_counter(), 0
    for batch in islice(stream, steps):
        batch[0].to(place, non_blocking=True)
        got += len(batch[0])
    if place.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    if hasattr(stream, "close"):
        stream.close()
    return got / seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="a parquet file or folder of 32 x 32 images"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    place, source = torch.device(options.device), open_source(str(options.data))
    source.prepare()
    began = time.perf_counter()
    kept = decoded(source, 1 << 30, WORKERS)
    seconds = time.perf_counter() - began
    ways = {
        "decoded as they come, 2 workers": lambda: ours(source, SHIFT, place),
        "decoded once, gathered on the device": lambda: ours(kept, SHIFT, place),
        "peer: pictures in memory, torchvision, 2 workers": lambda: peer(kept),
        "RandAugment, decoded as they come, 2 workers": lambda: ours(source, RAND, place),
        "RandAugment, decoded once, 2 workers": lambda: ours(kept, RAND, place),
    }
    rates = {name: [] for name in ways}
    load = os.getloadavg()[0]
    for _ in range(options.rounds):
        for name, start in ways.items():
            rates[name].append(rate(start(), options.steps, place))
    rows = [{"pipeline": name, "images_per_second": round(median(found)), "min_max": [round(min(found)), round(max(found))]}
            for name, found in rates.items()]  # fmt: skip
    result = {
        "measures": "training batches of 32 x 32 images, images a second",
        "command": f"python benchmarks/small.py --data {options.data.name} --device {options.device} --rounds {options.rounds}",
        "date": date.today().isoformat(),
        "machine": machine()
        | ({"gpu": torch.cuda.get_device_name()} if place.type == "cuda" else {}),
        "versions": versions(),
        "load_at_start_and_end": [round(load, 2), round(os.getloadavg()[0], 2)],
        "images": len(source),
        "seconds_to_decode_all": round(seconds, 1),
        "results": rows,
    }
    for row in rows:
        print(
            f"{row['pipeline']:52}{row['images_per_second']:>9,}  {row['min_max'][0]:,} to {row['min_max'][1]:,}"
        )
    print(f"decoding all {len(source):,} once took {seconds:.1f} s")
    output = Path(__file__).parent / "results" / f"small-{options.data.stem}-{place.type}.json"
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
