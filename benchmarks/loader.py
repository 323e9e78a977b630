"""How many training images a second reach the model: vitkit's input pipeline beside its peers'.

    python benchmarks/loader.py --data FOLDER_OR_PARQUET ...      (a class a folder; or image{bytes, path} and label)

The same task for all: JPEG files on disk, Inception crop to 224 (area 5 to 100 %, bilinear, antialiased), mirrored half
the time, batches of 64 uint8 images, two workers. vitkit draws crops as the paper did (the side is uniform), the peers
somewhat larger ones (the area is uniform): the row with torchvision's crop sizes compares like with like. timm's and
torchvision's usual endings turn batches into floats; where a peer has a uint8 way it is measured as well.

A round runs every pipeline once over the same files, in an order of its own. The clock starts when the batches that
were under way at the start are there, so that starting processes does not count. Printed and written to
benchmarks/results/: the median over the rounds with minimum and maximum, the ratio to the best peer, and the processor
time an image takes, in all processes together, which other programs on the machine disturb much less.

`reduced decode` lets libjpeg halve an image, or more, before the crop is resized, where the crop is at least twice as
large as 224. That changes pixels; by how much is measured too. `--mirror 500x375` makes photographs of that size out of
smaller ones, mirrored at their edges and encoded again (4:2:0): the texture stays that of photographs, which enlarging
would smooth away.
"""

import argparse
import io
import json
import math
import multiprocessing
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets as tv_datasets
from torchvision import io as tv_io
from torchvision import transforms as tv
from torchvision.transforms import v2

SIDE, BATCH, WORKERS = 224, 64, 2
PACKAGES = ("vitkit", "torch", "torchvision", "pillow", "timm", "datasets", "numpy", "turbojpeg")

Batches = Iterator[object]
Start = Callable[[int], Batches]  # a pipeline ready to run: begins anew with a seed


# vitkit


def vitkit(
    folder: Path, reduced: bool = False, library: bool = True, torchvisions_crops: bool = False
) -> Start:
    from vitkit.data import Augmentation, Preprocessing, open_source, train_batches

    source = open_source(str(folder))
    augmentation, preprocessing = (
        Augmentation(reduced_decode=reduced),
        Preprocessing(size=(SIDE, SIDE)),
    )
    changes = {} if library else {"vitkit.data.engine.turbojpeg.library": lambda: None}
    if torchvisions_crops:
        changes["vitkit.data.draws.inception_box"] = torchvision_box

    def start(seed: int) -> Batches:
        stream = train_batches(
            source, augmentation, preprocessing, batch=BATCH, seed=seed, after=0, workers=WORKERS
        )
        with ExitStack() as patches:
            for name, value in changes.items():
                patches.enter_context(mock.patch(name, value))
            yield next(stream)  # starts the workers, which keep what was changed
        yield from stream

    return start


def torchvision_box(
    height: int, width: int, area: tuple[float, float], random: np.random.Generator
):
    """RandomResizedCrop's box: the area is uniform, so crops are larger than TensorFlow's, whose side is uniform."""
    for _ in range(10):
        size = height * width * random.uniform(*area)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round((size * aspect) ** 0.5), round((size / aspect) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return int(random.integers(height - h + 1)), int(random.integers(width - w + 1)), h, w
    return 0, 0, height, width


# its peers


def loader(dataset: Dataset, seed: int, **options) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    return iter(
        DataLoader(
            dataset, BATCH, shuffle=True, num_workers=WORKERS, generator=generator, **options
        )
    )


def torchvision_pil(folder: Path) -> Start:
    crop = tv.Compose(
        [tv.RandomResizedCrop(SIDE, scale=(0.05, 1)), tv.RandomHorizontalFlip(), tv.PILToTensor()]
    )
    return partial(loader, tv_datasets.ImageFolder(str(folder), transform=crop))


def torchvision_tensor(folder: Path) -> Start:
    crop = v2.Compose(
        [v2.RandomResizedCrop(SIDE, scale=(0.05, 1), antialias=True), v2.RandomHorizontalFlip()]
    )
    decode = partial(tv_io.decode_image, mode=tv_io.ImageReadMode.RGB)
    return partial(loader, tv_datasets.ImageFolder(str(folder), loader=decode, transform=crop))


def timm_loader(folder: Path) -> Start:
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", root=str(folder), split="", is_training=True)
    options = {
        "scale": (0.05, 1),
        "color_jitter": 0.0,
        "interpolation": "bilinear",
        "use_prefetcher": False,
    }
    options |= {"num_workers": WORKERS, "persistent_workers": False}
    stream = create_loader(dataset, SIDE, BATCH, is_training=True, **options)
    return lambda seed: iter(stream)


def timm_uint8(folder: Path) -> Start:
    from timm.data import create_dataset, create_transform
    from timm.data.loader import fast_collate

    dataset = create_dataset("", root=str(folder), split="", is_training=True)
    options = {"scale": (0.05, 1), "color_jitter": 0.0, "interpolation": "bilinear"}
    dataset.transform = create_transform(SIDE, is_training=True, use_prefetcher=True, **options)
    return partial(loader, dataset, collate_fn=fast_collate)


def hugging_face(folder: Path) -> Start:
    import datasets

    datasets.disable_progress_bars()
    crop = v2.Compose(
        [v2.RandomResizedCrop(SIDE, scale=(0.05, 1)), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )

    def transform(rows: dict) -> dict:
        return {
            "image": [crop(image.convert("RGB")) for image in rows["image"]],
            "label": rows["label"],
        }

    cache = str(folder.parent / "cache")
    found = datasets.load_dataset(
        "imagefolder", data_dir=str(folder), split="train", cache_dir=cache
    )
    return partial(loader, found.with_transform(transform))


OURS = {
    "vitkit": vitkit,
    "vitkit, torchvision's crop sizes": partial(vitkit, torchvisions_crops=True),
    "vitkit, reduced decode": partial(vitkit, reduced=True),
    "vitkit without TurboJPEG": partial(vitkit, library=False),
}
PEERS = {
    "torchvision ImageFolder, PIL": torchvision_pil,
    "torchvision decode_image, v2 uint8": torchvision_tensor,
    "timm create_loader": timm_loader,
    "timm, uint8 collate": timm_uint8,
    "Hugging Face datasets, v2 on PIL": hugging_face,
}


# the measurement


class Rate(NamedTuple):
    images_per_second: float
    cpu_ms: (
        float  # processor time of all processes, per image: much less disturbed by other programs
    )


def rate(start: Start, seed: int, steps: int) -> Rate:
    """The steady rate: from the arrival of the batches that were under way at the start to that of the last one."""
    stream = start(seed)
    skipped = 2 * WORKERS
    for _ in islice(stream, skipped):
        pass
    begin, busy = time.perf_counter(), processor_seconds()
    got = sum(1 for _ in islice(stream, steps - skipped))
    seconds, busy = time.perf_counter() - begin, processor_seconds() - busy
    assert got == steps - skipped, f"{got} batches came, not {steps - skipped}"
    if hasattr(stream, "close"):
        stream.close()
    return Rate(got * BATCH / seconds, busy * 1e3 / (got * BATCH))


def processor_seconds() -> float:
    """Of this process and its workers; those of the workers are known on Linux alone."""
    ticks = 0
    for child in multiprocessing.active_children():
        if (stat := Path(f"/proc/{child.pid}/stat")).exists():
            ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(pipelines: dict[str, Start], rounds: int, steps: int) -> dict[str, list[Rate]]:
    """Rates by pipeline and round, after a round that does not count."""
    rates = {name: [] for name in pipelines}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(pipelines), len(pipelines)):
            rates[name].append(rate(pipelines[name], number, steps))
        print(f"round {number} of {rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return {name: values[1:] for name, values in rates.items()}


def reduced_difference(folder: Path, steps: int) -> dict[str, float]:
    """What reduced decoding changes, in grey levels of 255: the crops are the same, being a function of seed and step."""
    exact, reduced = (vitkit(folder, reduced=flag)(0) for flag in (False, True))
    pairs = islice(zip(exact, reduced, strict=False), steps)
    levels = torch.cat([(a.images.short() - b.images).abs().flatten() for a, b in pairs]).numpy()
    return {
        "mean": round(float(levels.mean()), 3),
        **{f"p{q}": float(np.percentile(levels, q)) for q in (95, 99, 99.9)},
    }


def report(rates: dict[str, list[Rate]]) -> list[dict]:
    """A row a pipeline, the fastest first, with ratios to the peer that is best by the median."""
    speed = {name: [rate.images_per_second for rate in values] for name, values in rates.items()}
    cpu = {name: median(rate.cpu_ms for rate in values) for name, values in rates.items()}
    best = max((name for name in rates if name in PEERS), key=lambda name: median(speed[name]))
    rows = []
    for name, values in speed.items():
        paired = [mine / theirs for mine, theirs in zip(values, speed[best], strict=True)]
        rows.append(
            {
                "pipeline": name,
                "images_per_second": round(median(values), 1),
                "min_max": [round(min(values), 1), round(max(values), 1)],
                "ratio_to_best_peer": round(median(values) / median(speed[best]), 3),
                "ratio_of_each_round": [round(value, 3) for value in paired],
                "cpu_ms_an_image": round(cpu[name], 3),
                "cpu_ratio": round(cpu[best] / cpu[name], 3),
                "best_peer": name == best,
            }
        )
    return sorted(rows, key=lambda row: -row["images_per_second"])


# the files


def photographs(data: Path) -> list[tuple[bytes, str]]:
    """(file, class) of a folder of class folders, or of a parquet file."""
    if data.is_dir():
        return [
            (path.read_bytes(), path.parent.name)
            for path in sorted(data.glob("*/*"))
            if path.is_file()
        ]
    import pyarrow.parquet as pq

    table = pq.read_table(data, columns=["image", "label"]).to_pylist()
    return [(row["image"]["bytes"], str(row["label"])) for row in table]


def mirrored(data: bytes, height: int, width: int, quality: int) -> bytes:
    """A photograph of a given size, from a smaller one mirrored at its edges."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[:height, :width]
    pixels = np.pad(
        pixels, ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0)), "symmetric"
    )
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return file.getvalue()


def write_folder(files: list[tuple[bytes, str]], folder: Path, images: int) -> None:
    """A class a folder, `images` files in all: each photograph as often as that takes."""
    for number in range(images):
        data, label = files[number % len(files)]
        path = folder / label / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def description(files: list[tuple[bytes, str]]) -> dict:
    sizes = []
    for data, _ in files:
        with Image.open(io.BytesIO(data)) as image:
            sizes.append(image.size)
    width, height = np.median(sizes, axis=0)
    size = int(median(len(data) for data, _ in files))
    return {
        "photographs": len(files),
        "median_size": f"{width:.0f}x{height:.0f}",
        "median_bytes": size,
    }


def machine() -> dict:
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        help="a folder of class folders, or parquet files",
    )
    parser.add_argument(
        "--mirror", metavar="WIDTHxHEIGHT", help="make photographs of this size out of smaller ones"
    )
    parser.add_argument("--quality", type=int, default=95, help="JPEG quality of those")
    parser.add_argument("--images", type=int, default=1536, help="files a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--only", nargs="*", default=None, help="pipelines whose name contains one of these words"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        help="default: benchmarks/results/loader-DATA-DATE.json",
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    files = [file for data in options.data for file in photographs(data)]
    if options.mirror:
        width, height = map(int, options.mirror.split("x"))
        files = [(mirrored(data, height, width, options.quality), label) for data, label in files]
    load = os.getloadavg()[0]
    root = Path(tempfile.mkdtemp())
    try:
        measured = run(files, root / "photographs", options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    command = [
        Path(word).name if "/" in word else word for word in sys.argv[1:]
    ]  # no one's folders
    result = {
        "measures": "training input pipeline, images a second: JPEG files to 224 crop, flip, uint8 batches",
        "command": " ".join(["python benchmarks/loader.py", *command]),
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "load_at_start_and_end": [
            round(load, 2),
            round(os.getloadavg()[0], 2),
        ],  # its own part of that is about two
        "data": {**description(files), "files_a_round": options.images},
        "settings": {"batch": BATCH, "workers": WORKERS, "side": SIDE, "rounds": options.rounds},
        **measured,
    }
    show(result)
    write(result, options)


def run(files: list[tuple[bytes, str]], folder: Path, options: argparse.Namespace) -> dict:
    write_folder(files, folder, options.images)
    steps = options.images // BATCH
    chosen = {
        n: p
        for n, p in {**OURS, **PEERS}.items()
        if not options.only or any(o in n for o in options.only)
    }
    rates = measure(
        {name: prepare(folder) for name, prepare in chosen.items()}, options.rounds, steps
    )
    measured = {"results": report(rates)}
    if chosen.keys() & OURS:
        measured["reduced_decode_difference_in_grey_levels"] = reduced_difference(
            folder, min(steps, 8)
        )
    return measured


def write(result: dict, options: argparse.Namespace) -> None:
    name = f"loader-{options.mirror or result['data']['median_size']}"
    output = options.output or Path(__file__).parent / "results" / f"{name}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {output}")


def show(result: dict) -> None:
    print(f"{result['data']}, load at start and end {result['load_at_start_and_end']}")
    print(
        f"{'pipeline':36}{'images/s':>9}{'min':>7}{'max':>7}{'ratio':>7}{'rounds':>14}{'CPU ms':>8}{'ratio':>7}"
    )
    for row in result["results"]:
        (low, high), each = row["min_max"], row["ratio_of_each_round"]
        spread = f"{min(each):.2f}-{max(each):.2f}"
        print(
            f"{row['pipeline']:36}{row['images_per_second']:9.0f}{low:7.0f}{high:7.0f}{row['ratio_to_best_peer']:7.2f}"
            f"{spread:>14}{row['cpu_ms_an_image']:8.2f}{row['cpu_ratio']:7.2f}{' <- best peer' * row['best_peer']}"
        )
    if levels := result.get("reduced_decode_difference_in_grey_levels"):
        print("reduced decode against exact, grey levels of 255:", levels)


if __name__ == "__main__":
    main()
