"""How many training images per second reach the model: vitkit's input pipeline and its peers'.

    python benchmarks/loader.py --data FOLDER_OR_PARQUET ...
    python benchmarks/loader.py --data FOLDER_OR_PARQUET ... --mirror 500x375 --quality 90

--data is a folder with one sub-folder per class, or parquet files with the columns `image` and
`label`. The second command makes photographs of another size out of smaller ones: mirrored at
their edges and encoded again (4:2:0). Enlarging would smooth the texture of photographs away.

The task is the same for all: read JPEG files from disk, take an Inception crop to 224 (area 5 to
100 %, bilinear, antialiased), flip half of them, and deliver batches of 64 uint8 images, by two
workers (--workers). Two things differ:

- vitkit draws crops as the paper did: their side is uniform. The peers' are somewhat larger: their
  area is uniform. The row with torchvision's crop sizes compares like with like.
- timm and torchvision usually end with batches of floats. A peer that also has a uint8 way is
  measured with both.

A round runs every pipeline once over the same files, in an order of its own. The clock starts when
the batches that were under way at the start have arrived, so starting processes does not count.

Prints and writes, for each pipeline: images per second (median over the rounds, minimum, maximum),
the ratio to the best peer, the processor time per image in all processes together (other programs on
the machine disturb it much less), the seconds until the first batch, and the memory of all processes
while they run (each page counts once). The file is
benchmarks/results/loader-SIZE.json unless --output says another.

"vitkit, threads" prepares the same batches in threads of this process instead of worker processes.
TurboJPEG (through ctypes), Pillow and PyTorch release the lock of the interpreter while they work.

"reduced decode" lets libjpeg halve an image, or more, before the crop is resized, if the crop is
at least twice as large as 224. This changes pixels; by how much is measured too.
"""

import argparse
import io
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest import mock

import numpy as np
import record
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets as tv_datasets
from torchvision import io as tv_io
from torchvision import transforms as tv
from torchvision.transforms import v2

SIDE, BATCH = 224, 64
WORKERS = 2  # processes, or threads; --workers sets it
AREA = (0.05, 1)  # smallest and largest part of an image that a crop takes
AHEAD = 2  # batches that each worker prepares before the first is asked for
COMPARED = 8  # batches that are decoded in full and at a reduced size, to compare the pixels
PACKAGES = ("vitkit", "torch", "torchvision", "pillow", "timm", "datasets", "numpy", "turbojpeg")

Batches = Iterator[object]
Start = Callable[[int], Batches]
"""A pipeline that is ready to run: begins anew with a seed."""
File = tuple[bytes, str]
"""The bytes of a photograph, and its class."""


# vitkit


def vitkit(
    folder: Path,
    reduced: bool = False,
    turbojpeg: bool = True,
    torchvisions_crops: bool = False,
    threads: bool = False,
) -> Start:
    """vitkit's pipeline; with reduced decoding, without TurboJPEG, with torchvision's crops, or in
    threads."""
    from vitkit.data import Augmentation, Preprocessing, open_source, train_batches

    source = open_source(str(folder))
    augmentation = Augmentation(reduced_decode=reduced)
    preprocessing = Preprocessing(size=(SIDE, SIDE))
    changes = {}
    if not turbojpeg:
        changes["vitkit.data.images.jpeg.library"] = lambda: None
    if torchvisions_crops:
        changes["vitkit.data.augmentation.draws.inception_box"] = torchvision_box
    if threads:
        changes["vitkit.data.loading.batches.batches_in_order"] = in_threads

    def start(seed: int) -> Batches:
        with ExitStack() as patches:
            for name, value in changes.items():
                patches.enter_context(mock.patch(name, value))
            stream = train_batches(
                source,
                augmentation,
                preprocessing,
                batch=BATCH,
                seed=seed,
                after=0,
                workers=WORKERS,
            )
            yield next(stream)  # starts the workers, which keep what was changed
        yield from stream

    return start


def in_threads(
    fill: Callable, items: Iterable, workers: int, layout, *_: object, ahead: int = AHEAD
) -> Batches:
    """As vitkit's `batches_in_order`: fill(images, item) for every item, in order, but in threads."""

    def task(item: object) -> object:
        return fill(torch.empty(layout.shape, dtype=layout.dtype), item)

    items = iter(items)
    one_thread = partial(torch.set_num_threads, 1)
    with ThreadPoolExecutor(workers, initializer=one_thread) as pool:
        under_way: deque[Future] = deque()
        for item in islice(items, ahead * workers + 1):
            under_way.append(pool.submit(task, item))
        while under_way:
            yield under_way.popleft().result()
            under_way.extend(pool.submit(task, item) for item in islice(items, 1))


def torchvision_box(
    height: int, width: int, area: tuple[float, float], random: np.random.Generator
) -> tuple[int, int, int, int]:
    """RandomResizedCrop's box, (top, left, height, width): its area is uniform, not its side."""
    for _ in range(10):
        size = height * width * random.uniform(*area)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w = round((size * aspect) ** 0.5)
        h = round((size / aspect) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            top = int(random.integers(height - h + 1))
            left = int(random.integers(width - w + 1))
            return top, left, h, w
    return 0, 0, height, width


# Its peers


def torchvision_pil(folder: Path) -> Start:
    """The usual way: ImageFolder, which decodes by Pillow, and transforms of Pillow images."""
    crop = tv.Compose(
        [tv.RandomResizedCrop(SIDE, scale=AREA), tv.RandomHorizontalFlip(), tv.PILToTensor()]
    )
    return partial(data_loader, tv_datasets.ImageFolder(str(folder), transform=crop))


def torchvision_tensor(folder: Path) -> Start:
    """The fastest way: torchvision's own decoder, and transforms of uint8 tensors."""
    crop = v2.Compose(
        [v2.RandomResizedCrop(SIDE, scale=AREA, antialias=True), v2.RandomHorizontalFlip()]
    )
    decode = partial(tv_io.decode_image, mode=tv_io.ImageReadMode.RGB)
    return partial(data_loader, tv_datasets.ImageFolder(str(folder), loader=decode, transform=crop))


def timm_loader(folder: Path) -> Start:
    """timm's own loader, which ends with floats."""
    from timm.data import create_loader

    stream = create_loader(
        timm_dataset(folder),
        SIDE,
        BATCH,
        is_training=True,
        use_prefetcher=False,
        num_workers=WORKERS,
        persistent_workers=False,
        **TIMM_CROP,
    )
    return lambda seed: iter(stream)


def timm_uint8(folder: Path) -> Start:
    """timm's transforms, and its collate function for uint8 batches."""
    from timm.data import create_transform
    from timm.data.loader import fast_collate

    dataset = timm_dataset(folder)
    dataset.transform = create_transform(SIDE, is_training=True, use_prefetcher=True, **TIMM_CROP)
    return partial(data_loader, dataset, collate_fn=fast_collate)


TIMM_CROP = {"scale": AREA, "color_jitter": 0.0, "interpolation": "bilinear"}


def timm_dataset(folder: Path) -> Dataset:
    from timm.data import create_dataset

    return create_dataset("", root=str(folder), split="", is_training=True)


def hugging_face(folder: Path) -> Start:
    """A folder opened by `datasets`, with torchvision's transforms of Pillow images."""
    import datasets

    datasets.disable_progress_bars()
    crop = v2.Compose(
        [v2.RandomResizedCrop(SIDE, scale=AREA), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )

    def transform(rows: dict) -> dict:
        images = [crop(image.convert("RGB")) for image in rows["image"]]
        return {"image": images, "label": rows["label"]}

    dataset = datasets.load_dataset(
        "imagefolder",
        data_dir=str(folder),
        split="train",
        cache_dir=str(folder.parent / "cache"),
    )
    return partial(data_loader, dataset.with_transform(transform))


def data_loader(dataset: Dataset, seed: int, **options) -> Batches:
    """PyTorch's DataLoader, shuffled by the seed."""
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        dataset, BATCH, shuffle=True, num_workers=WORKERS, generator=generator, **options
    )
    return iter(loader)


OURS = {
    "vitkit": vitkit,
    "vitkit, torchvision's crop sizes": partial(vitkit, torchvisions_crops=True),
    "vitkit, reduced decode": partial(vitkit, reduced=True),
    "vitkit without TurboJPEG": partial(vitkit, turbojpeg=False),
    "vitkit, threads": partial(vitkit, threads=True),
}
PEERS = {
    "torchvision ImageFolder, PIL": torchvision_pil,
    "torchvision decode_image, v2 uint8": torchvision_tensor,
    "timm create_loader": timm_loader,
    "timm, uint8 collate": timm_uint8,
    "Hugging Face datasets, v2 on PIL": hugging_face,
}


# The measurement


class Rate(NamedTuple):
    """How fast a pipeline was in a round."""

    images_per_second: float
    cpu_ms: float
    """Processor time per image, of all processes together."""
    first_seconds: float
    """From the start of the pipeline to its first batch."""
    megabytes: float
    """Memory of all processes at the end; NaN if not on Linux."""


def measure(pipelines: dict[str, Start], rounds: int, steps: int) -> dict[str, list[Rate]]:
    """The rates of every pipeline, round by round, after a first round that does not count."""
    rates = {name: [] for name in pipelines}
    for number in range(rounds + 1):
        order = random.Random(number).sample(list(pipelines), len(pipelines))
        for name in order:
            rates[name].append(rate(pipelines[name], number, steps))
        print(f"round {number} of {rounds}, load {record.load():.1f}", file=sys.stderr)
    return {name: values[1:] for name, values in rates.items()}


def rate(start: Start, seed: int, steps: int) -> Rate:
    """The steady rate: from the arrival of the batches that were under way to that of the last."""
    began = time.perf_counter()
    stream = start(seed)
    next(stream)
    first_seconds = time.perf_counter() - began
    for _ in islice(stream, AHEAD * WORKERS - 1):
        pass
    began = time.perf_counter()
    busy_before = processor_seconds()

    expected = steps - AHEAD * WORKERS
    batches = sum(1 for _ in islice(stream, expected))
    seconds = time.perf_counter() - began
    busy = processor_seconds() - busy_before
    megabytes = memory()

    assert batches == expected, f"{batches} batches came, not {expected}"
    if hasattr(stream, "close"):
        stream.close()
    images = batches * BATCH
    return Rate(images / seconds, 1e3 * busy / images, first_seconds, megabytes)


def processor_seconds() -> float:
    """What this process and its workers have computed; without the workers if not on Linux."""
    ticks = 0
    for child in multiprocessing.active_children():
        stat = Path(f"/proc/{child.pid}/stat")
        if stat.exists():
            numbers = stat.read_text().rpartition(")")[2].split()
            user, system = numbers[11:13]
            ticks += int(user) + int(system)
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def memory() -> float:
    """Megabytes of this process and its workers, a page that several share counted once."""
    kilobytes = 0
    for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        rollup = Path(f"/proc/{pid}/smaps_rollup")
        if not rollup.exists():
            return math.nan
        kilobytes += int(rollup.read_text().partition("Pss:")[2].split()[0])
    return kilobytes / 1e3


def reduced_difference(folder: Path, batches: int) -> dict[str, float]:
    """What reduced decoding changes, in grey levels of 255.

    Both streams have the same crops, as these are a function of the seed and the step.
    """
    exact = vitkit(folder)(0)
    reduced = vitkit(folder, reduced=True)(0)
    differences = []
    for a, b in islice(zip(exact, reduced, strict=False), batches):
        differences.append((a.images.short() - b.images).abs().flatten())
    levels = torch.cat(differences).numpy()
    summary = {"mean": round(float(levels.mean()), 3)}
    for q in (95, 99, 99.9):
        summary[f"p{q}"] = float(np.percentile(levels, q))
    return summary


def report(rates: dict[str, list[Rate]]) -> list[dict]:
    """A row for each pipeline, the fastest first, with ratios to the peer of the best median."""
    speeds = {name: [rate.images_per_second for rate in values] for name, values in rates.items()}
    cpu = {name: median(rate.cpu_ms for rate in values) for name, values in rates.items()}
    first = {name: median(rate.first_seconds for rate in values) for name, values in rates.items()}
    megabytes = {name: median(rate.megabytes for rate in values) for name, values in rates.items()}
    peers = [name for name in rates if name in PEERS]
    best = max(peers, key=lambda name: median(speeds[name]))
    rows = []
    for name, values in speeds.items():
        ratios = [mine / theirs for mine, theirs in zip(values, speeds[best], strict=True)]
        rows.append(
            {
                "pipeline": name,
                "images_per_second": round(median(values), 1),
                "min_max": [round(min(values), 1), round(max(values), 1)],
                "ratio_to_best_peer": round(median(values) / median(speeds[best]), 3),
                "ratio_of_each_round": [round(ratio, 3) for ratio in ratios],
                "cpu_ms_an_image": round(cpu[name], 3),
                "cpu_ratio": round(cpu[best] / cpu[name], 3),
                "first_batch_s": round(first[name], 3),
                "memory_mb": round(megabytes[name]),
                "best_peer": name == best,
            }
        )
    return sorted(rows, key=lambda row: -row["images_per_second"])


# The files


def photographs(data: Path) -> list[File]:
    """The files of a folder of class folders, or of a parquet file."""
    if data.is_dir():
        paths = sorted(path for path in data.glob("*/*") if path.is_file())
        return [(path.read_bytes(), path.parent.name) for path in paths]
    import pyarrow.parquet as pq

    rows = pq.read_table(data, columns=["image", "label"]).to_pylist()
    return [(row["image"]["bytes"], str(row["label"])) for row in rows]


def mirrored(data: bytes, height: int, width: int, quality: int) -> bytes:
    """A photograph of a given size, from a smaller one that is mirrored at its edges."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[:height, :width]
    below = height - pixels.shape[0]
    right = width - pixels.shape[1]
    pixels = np.pad(pixels, ((0, below), (0, right), (0, 0)), "symmetric")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return file.getvalue()


def write_folder(files: list[File], folder: Path, images: int) -> None:
    """Write `images` files in class folders, each photograph as often as that takes."""
    for number in range(images):
        data, label = files[number % len(files)]
        path = folder / label / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def description(files: list[File]) -> dict:
    """How many photographs there are, and how large they are."""
    sizes = []
    for data, _ in files:
        with Image.open(io.BytesIO(data)) as image:
            sizes.append(image.size)
    width, height = np.median(sizes, axis=0)
    return {
        "photographs": len(files),
        "median_size": f"{width:.0f}x{height:.0f}",
        "median_bytes": int(median(len(data) for data, _ in files)),
    }


# The command


def main() -> None:
    global WORKERS
    options = arguments()
    WORKERS = options.workers
    files = chosen_files(options)
    load_at_start = record.load()
    root = Path(tempfile.mkdtemp())
    try:
        measured = run(files, root / "photographs", options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    result = {
        **record.about(
            "training input pipeline, images a second: JPEG files to 224 crop, flip, uint8 batches",
            PACKAGES,
        ),
        # the benchmark's own part of the load at the end is about two
        "load_at_start_and_end": [load_at_start, record.load()],
        "data": {**description(files), "files_a_round": options.images},
        "settings": {"batch": BATCH, "workers": WORKERS, "side": SIDE, "rounds": options.rounds},
        **measured,
    }
    show(result)
    write(result, options)


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
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
    parser.add_argument("--images", type=int, default=1536, help="files in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes, or threads")
    parser.add_argument(
        "--only", nargs="*", help="pipelines whose name contains one of these words"
    )
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    return parser.parse_args()


def chosen_files(options: argparse.Namespace) -> list[File]:
    """The photographs that the command line names, mirrored to a size if it says so."""
    files = []
    for data in options.data:
        files += photographs(data)
    if options.mirror:
        width, height = map(int, options.mirror.split("x"))
        files = [(mirrored(data, height, width, options.quality), label) for data, label in files]
    return files


def run(files: list[File], folder: Path, options: argparse.Namespace) -> dict:
    """Write the files into a folder and measure the pipelines on them."""
    write_folder(files, folder, options.images)
    steps = options.images // BATCH
    pipelines = {}
    for name, prepare in (OURS | PEERS).items():
        if not options.only or any(word in name for word in options.only):
            pipelines[name] = prepare(folder)
    rates = measure(pipelines, options.rounds, steps)
    measured = {"results": report(rates)}
    if pipelines.keys() & OURS.keys():
        difference = reduced_difference(folder, min(steps, COMPARED))
        measured["reduced_decode_difference_in_grey_levels"] = difference
    return measured


def write(result: dict, options: argparse.Namespace) -> None:
    """Write the results to --output, or beside those of other sizes of photographs."""
    size = options.mirror or result["data"]["median_size"]
    output = options.output or Path(__file__).parent / "results" / f"loader-{size}.json"
    record.write(result, output)
    print(f"wrote {output}")


def show(result: dict) -> None:
    """Print the results as a table."""
    print(f"{result['data']}, load at start and end {result['load_at_start_and_end']}")
    print(
        f"{'pipeline':36}{'images/s':>9}{'min':>7}{'max':>7}{'ratio':>7}{'rounds':>14}"
        f"{'CPU ms':>8}{'ratio':>7}{'first s':>9}{'MB':>7}"
    )
    for row in result["results"]:
        low, high = row["min_max"]
        ratios = row["ratio_of_each_round"]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        line = f"{row['pipeline']:36}{row['images_per_second']:9.0f}{low:7.0f}{high:7.0f}"
        line += f"{row['ratio_to_best_peer']:7.2f}{spread:>14}"
        line += f"{row['cpu_ms_an_image']:8.2f}{row['cpu_ratio']:7.2f}"
        line += f"{row['first_batch_s']:9.2f}{row['memory_mb']:7.0f}"
        if row["best_peer"]:
            line += " <- best peer"
        print(line)
    levels = result.get("reduced_decode_difference_in_grey_levels")
    if levels:
        print("reduced decode against exact, grey levels of 255:", levels)


if __name__ == "__main__":
    main()
