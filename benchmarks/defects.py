"""How well a model of good images finds others, beside two published methods on the same weights and images.

From 1, 2, 4, 16 and 64 good images, drawn several times: the area under the ROC curve of the images (`auroc`), its
mean and standard error over draws, and AUPRO where the data have boxes (`aupro`). `vitkit` is what `vitkit finetune`
makes, of two images or more; the others are written here from their papers, for images of the same size:

- `anomalydino`: all patches of the last block in memory, the cosine distance to the nearest, and the mean of
  the largest hundredth (Damm et al. 2025);
- `patchcore`: patches of two blocks in the middle, each averaged with its eight neighbours, a coreset of a
  tenth of them, the Euclidean distance, and the largest one (Roth et al. 2022).

`false alarms`: half of all good images are learned from and the others measured, in 40 draws, where the
threshold promises 5 %. `large`: seconds, bytes and memory for 1,000 good images of 224 pixels, which are parts of
those of the first data set; `cpu seconds` are those of all processes, whatever else the machine computes.

    python benchmarks/defects.py --model WEIGHTS --data FOLDER --output FILE
"""

import argparse
import os
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import record
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitkit import finetune
from vitkit.data import Source, open_parts, subset
from vitkit.evaluation.metrics.defects import auroc
from vitkit.evaluation.metrics.overlap import per_region_overlap
from vitkit.finetuning import good_images
from vitkit.finetuning.memory_bank import MOST, fit_threshold, memory_bank
from vitkit.models.head import distances_to, worst_count
from vitkit.recipes import Recipe
from vitkit.recipes import finetune as recipe_of
from vitkit.weights import load

PACKAGES = ("torch", "numpy", "vitkit")
SETS = ("defects_solar", "defects_boards")
COUNTS = (1, 2, 4, 16, 64)
DRAWS = {1: 8, 2: 8, 4: 8, 16: 4, 64: 3}
RATES = 40  # draws of images for the share of false alarms
MIDDLE = (2 / 3, 3 / 4)  # of the blocks, those that PatchCore's adaptation reads
PROJECTED = 64  # numbers of a patch by which PatchCore's coreset is chosen
LARGE = 1_000
BATCH = 8


class Patches(NamedTuple):
    """The patches of all images by each method: float16 (I, N, D)."""

    vitkit: Tensor
    anomalydino: Tensor
    patchcore: Tensor


class Images(NamedTuple):
    """A data set."""

    learn: Patches
    """Good images to learn from."""
    test: Patches
    is_bad: np.ndarray
    regions: list[list[np.ndarray]] | None
    """Of each test image, on a grid of four pixels a cell; None without boxes."""
    grid: tuple[int, int]


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)
    content = {**about, "auroc": {}, "aupro": {}, "false alarms": {}}
    for name in options.sets:
        images = read(options, name)
        content["auroc"][name], aupro = compared(images, options)
        if images.regions is not None:
            content["aupro"][name] = aupro
        content["false alarms"][name] = false_alarms(images, options.rates)
        print(name, content["auroc"][name], aupro, content["false alarms"][name], flush=True)
    if options.large:
        content["large"] = large(options)
        print(content["large"])
    record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--draws", type=int, default=0, help="instead of the usual number")
    parser.add_argument("--rates", type=int, default=RATES)
    parser.add_argument("--large", type=int, default=LARGE, help="0 leaves it out")
    parser.add_argument("--output", type=Path)
    return parser


# The patches of images


def opened(options: argparse.Namespace, name: str) -> tuple[Source, Source, Recipe]:
    """The images of a data set to learn from and to test on, and a recipe that reads them at the size that vitkit
    chooses for them."""
    learn = one_part(options.data / f"{name}-train.parquet")
    test = one_part(options.data / f"{name}-test.parquet")
    recipe = recipe_of(options.model, str(options.data / f"{name}-train.parquet"), "quick")
    preprocessing = replace(recipe.data.preprocessing, rule="square", resize=0)
    recipe = replace(recipe, data=replace(recipe.data, preprocessing=preprocessing))
    return learn, test, good_images.at_own_resolution(recipe, learn)


def read(options: argparse.Namespace, name: str) -> Images:
    """A data set."""
    learn, test, recipe = opened(options, name)
    learned = patches_of(options.model, recipe, learn)
    tested = patches_of(options.model, recipe, test)
    regions = regions_of(options.data / f"{name}-test.parquet", test)
    return Images(learned, tested, test.target_array != 0, regions, recipe.model.grid)


def one_part(path: Path) -> Source:
    """The images of a file."""
    (source,) = open_parts(path).sources.values()
    return source


@torch.inference_mode()
def patches_of(model: str, recipe: Recipe, source: Source) -> Patches:
    """What each method compares of each image."""
    size = recipe.data.preprocessing.size
    trunk = good_images.trunk_for(recipe, torch.device("cpu"))
    whole = load(model, image=size, quiet=True)
    network = whole.model
    depth = len(network.blocks)
    middle = [round(share * depth) - 1 for share in MIDDLE]
    columns: list[list[Tensor]] = [[], [], []]
    for start in range(0, len(source), BATCH):
        x = batch_of(recipe, source, start)
        columns[0].append(trunk.model.pool.directions(trunk.model.patch_states(x)).half())
        grid = network.grid(x)
        states = network.last_states(network.embed(x), grid, depth)
        last = network.norm(states[-1])[:, network.config.prefix :]
        columns[1].append(F.normalize(last, dim=-1).half())
        own = torch.cat([states[k][:, network.config.prefix :] for k in middle], -1)
        own = own.mT.unflatten(2, grid)  # (B, D, h, w)
        own = F.avg_pool2d(own, 3, 1, 1, count_include_pad=False)
        columns[2].append(own.flatten(2).mT.half())
    return Patches(*(torch.cat(column) for column in columns))


def batch_of(recipe: Recipe, source: Source, start: int) -> Tensor:
    """BATCH images from number `start` on, normalised: (B, 3, H, W)."""
    pictures = [source.picture(i) for i in range(start, min(start + BATCH, len(source)))]
    prepared = [recipe.data.preprocessing.array(picture) for picture in pictures]
    return recipe.data.preprocessing.normalise(torch.from_numpy(np.stack(prepared)))


def regions_of(path: Path, source: Source) -> list[list[np.ndarray]] | None:
    """The boxes of each image as masks, of a quarter of its sides; None if the file has no boxes."""
    table = pq.read_table(path)
    if "boxes" not in table.column_names:
        return None
    regions = []
    for number, boxes in enumerate(table["boxes"].to_pylist()):
        height, width = (side // 4 for side in source.picture(number).size)
        own = []
        for box in np.asarray(boxes or [], dtype=float).reshape(-1, 4):
            left, top, right, bottom = (box / 4).round().astype(int)
            mask = np.zeros((height, width), bool)
            mask[top : max(bottom, top + 1), left : max(right, left + 1)] = True
            own.append(mask)
        regions.append(own)
    return regions


# The methods


def distances(way: str, learned: Tensor, tested: Tensor, draw: int) -> np.ndarray:
    """The distance of each patch of test images, (T, N, D), to the nearest of good images, (I, N, D): (T,
    N)."""
    if way == "vitkit":
        memory = memory_bank(learned).patches
    else:
        memory = learned.flatten(0, 1).float()
    if way == "patchcore":
        generator = torch.Generator().manual_seed(draw)
        memory = memory[coreset(memory, max(len(memory) // 10, 1), generator)]
        found = [nearest(image.float(), memory) for image in tested]
    else:
        found = [distances_to(image[None].float(), memory)[0] for image in tested]
    return torch.stack(found).numpy()


def coreset(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` of R rows, so that none is far from its nearest: the greedy k-centre algorithm, on a random
    projection. Returns indices, (count,)."""
    points = rows @ torch.randn(rows.shape[1], PROJECTED, generator=generator)  # (R, P)
    nearest_chosen = torch.full((len(points),), torch.inf)
    chosen = torch.zeros(count, dtype=torch.int64)
    for k in range(1, count):
        squares = (points - points[chosen[k - 1]]).square().sum(1)
        nearest_chosen = torch.minimum(nearest_chosen, squares)
        chosen[k] = nearest_chosen.argmax()
    return chosen


def nearest(patches: Tensor, memory: Tensor) -> Tensor:
    """The Euclidean distance of each patch, (N, D), to the nearest in memory, (M, D): (N,)."""
    return torch.cdist(patches, memory).amin(1)


def scores(way: str, of_patches: np.ndarray) -> np.ndarray:
    """The score of each image from the distances of its patches, (T, N) -> (T,)."""
    count = {
        "vitkit": worst_count(of_patches.shape[1]),
        "anomalydino": max(1, round(0.01 * of_patches.shape[1])),
        "patchcore": 1,
    }[way]
    return np.sort(of_patches, axis=1)[:, -count:].mean(1)


def compared(images: Images, options: argparse.Namespace) -> tuple[dict, dict]:
    """The figures of each way, by the number of good images, in percent: mean and standard error."""
    by_auroc: dict = {}
    by_overlap: dict = {}
    for way in Patches._fields:
        learned = getattr(images.learn, way)
        tested = getattr(images.test, way)
        for count in options.counts:
            draws = options.draws or DRAWS.get(count, 3)
            aurocs = []
            overlaps = []
            for draw in range(draws):
                chosen = np.random.default_rng(draw).permutation(len(learned))[:count]
                found = distances(way, learned[torch.from_numpy(chosen)], tested, draw)
                aurocs.append(auroc(scores(way, found), images.is_bad))
                if images.regions is not None:
                    overlaps.append(overlap(found, images))
            by_auroc.setdefault(way, {})[count] = mean_and_error(aurocs)
            if overlaps:
                by_overlap.setdefault(way, {})[count] = mean_and_error(overlaps)
        print(way, by_auroc[way], by_overlap.get(way), flush=True)
    return by_auroc, by_overlap


def overlap(found: np.ndarray, images: Images) -> float:
    """AUPRO of the distances of all patches, (T, N)."""
    maps = []
    regions = []  # the numbers of the pixels of each
    for row, own in zip(found, images.regions or (), strict=True):
        height, width = own[0].shape if own else (160, 160)
        small = Image.fromarray(row.reshape(images.grid).astype(np.float32))
        maps.append(np.asarray(small.resize((width, height), Image.Resampling.BILINEAR)))
        regions.append([np.flatnonzero(mask) for mask in own])
    return per_region_overlap(maps, regions)


def mean_and_error(values: list[float]) -> list[float]:
    """The mean and its standard error, in percent."""
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return [round(100 * float(np.mean(values)), 1), round(100 * float(error), 1)]


# The promise


@torch.inference_mode()
def false_alarms(images: Images, draws: int) -> dict:
    """The share of other good images above the threshold, which promises 5 %: mean over draws, the lowest and
    the highest, and how often it is within the interval that is printed.

    Which patches are in memory of an image does not depend on the others, so that distances between images are
    computed once.
    """
    good = images.test.vitkit[torch.from_numpy(~images.is_bad)]
    patches = torch.cat([images.learn.vitkit, good])  # (I, N, D)
    count, each, _ = patches.shape
    half = count // 2
    memory = memory_bank(patches, most=min(MOST // half, each) * count).patches
    between = []  # the distance of each patch of an image to the nearest of each image
    for image in patches:
        similar = image.float() @ memory.mT  # (N, I · kept)
        between.append(1 - similar.unflatten(1, (count, -1)).amax(2))
    distances = torch.stack(between).numpy()  # (I, N, I)
    rates = []
    inside = 0
    promised = 0.0
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(count)
        learned, others = order[:half], order[half:]
        left_out = []
        for i in learned:
            rest = learned[learned != i]
            left_out.append(scores("vitkit", distances[i][None, :, rest].min(2))[0])
        threshold = fit_threshold(np.array(left_out))
        found = scores("vitkit", distances[others][:, :, learned].min(2))
        rates.append(float((found > threshold.value).mean()))
        low, high = threshold.interval
        inside += low - 0.5 / half <= rates[-1] <= high + 0.5 / half
        promised = threshold.rejected
    return {
        "images": half,
        "promised": round(100 * promised, 1),
        "mean": round(100 * float(np.mean(rates)), 1),
        "lowest": round(100 * min(rates), 1),
        "highest": round(100 * max(rates), 1),
        "in the interval": round(100 * inside / draws),
    }


# Many images


def large(options: argparse.Namespace) -> dict:
    """Seconds and bytes of `vitkit finetune` for many good images: different parts of those of the first
    set."""
    source = one_part(options.data / f"{[*options.sets, *SETS][0]}-train.parquet")
    draws = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        good = Path(folder) / "good"
        good.mkdir()
        for number in range(options.large):
            pixels = subset(source, [number % len(source)]).picture(0).pixels()
            side = min(pixels.shape[:2]) * 3 // 4
            top, left = (int(draws.integers(0, full - side + 1)) for full in pixels.shape[:2])
            part = Image.fromarray(pixels[top : top + side, left : left + side])
            part.resize((224, 224)).save(good / f"{number:04}.jpg")
        began = time.perf_counter()
        before = sum(os.times()[:4])
        made = finetune(options.model, good, workdir=Path(folder) / "run", quiet=True)
        seconds = time.perf_counter() - began
        of_cpu = sum(os.times()[:4]) - before
        written = sum(file.stat().st_size for file in (made.run_dir / "model").iterdir())
    return {
        "images": options.large,
        "seconds": round(seconds, 1),
        "cpu seconds": round(of_cpu, 1),
        "peak megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "megabytes": round(written / 1e6, 1),
    }


if __name__ == "__main__":
    main()
