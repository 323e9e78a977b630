"""Whether bursts are found, and what is printed of a model that was made of them.

Bursts are planted: of photographs of a data set, a few of each class become five shots each, zoomed up
to 1.25 times, shifted up to a tenth, turned up to 4 degrees, 0.3 stops lighter or darker, and encoded
as JPEG of quality 60 to 90. They are named one after the other, or by time across folders, or at random
without a time, so that only looks can tell. All other photographs of these classes are new ones.

- planted: the share of pairs of shots that are found, the pairs that are wrong, and what is printed of
  a closed form, with and without the groups, beside the accuracy on new photographs;
- plain: the images that are grouped in data sets without bursts, named one after the other;
- copied: 120 photographs, each three times under names that say nothing: as it is, mirrored and turned by a
  quarter; the same cut at different edges; or turned by an angle and by twice that angle.

    python benchmarks/bursts.py --model WEIGHTS --planted SET... --plain SET... --output FILE
    python benchmarks/bursts.py --copied SET... --output FILE
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
import torch
from PIL import Image, ImageEnhance, ImageOps

from vitkit.data import Source, merge_parts, open_image, open_parts, open_splits
from vitkit.data.sources.bursts import find_bursts
from vitkit.evaluation import Features, Probing, compute_features
from vitkit.weights import load

PACKAGES = ("torch", "numpy", "scipy", "vitkit")
CLASSES = 6  # at most
OBJECTS = 12  # of each class, that are photographed
SHOTS = 5
SIDE = 400  # pixels of the longer side of a shot, at most
SETTINGS = (
    ("its own", "in turn"),
    ("its own", "by time"),
    ("its own", "at random"),
    ("drawn", "in turn"),
)
"""What the labels mean, nothing if they are drawn; and how files are named."""
COPIED = 120  # photographs that are copied
ANGLES = (8, 15, 20, 40, 60)  # degrees
EXIF = 0x8769
TAKEN = 0x9003  # DateTimeOriginal


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--model")
    parser.add_argument("--copied", nargs="*", default=())
    parser.add_argument("--planted", nargs="*", default=())
    parser.add_argument("--plain", nargs="*", default=())
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)
    if options.copied:
        results = []
        for data in options.copied:
            for how in ("mirrored and turned", "cut at edges too", *ANGLES):
                results.append({"data": Path(data).name, "copies": how, **copied(data, how)})
                print(results[-1], flush=True)
        content = about | {"copied": results}
        record.write(content, options.output)
        return content
    classifier = load(options.model, quiet=True).for_inference()
    planted = []
    for data in options.planted:
        for labels, named in SETTINGS:
            trials = [trial(classifier, data, labels, named, seed) for seed in range(options.draws)]
            means = {key: round(float(np.mean([t[key] for t in trials])), 2) for key in trials[0]}
            planted.append({"data": Path(data).name, "labels": labels, "named": named, **means})
            print(planted[-1], flush=True)
    plain = []
    for data in options.plain:
        plain.append({"data": Path(data).name, **grouped(data)})
        print(plain[-1], flush=True)
    content = about
    content |= {"planted": planted, "plain": plain}
    record.write(content, options.output)
    return content


# Planted bursts


class Objects(NamedTuple):
    """Photographs of things, each by its number in the data set."""

    source: Source
    learned: list[int]
    """Those that are photographed in bursts."""
    new: list[int]
    labels: dict[int, str]
    """What each is called."""


def drawn(data: str, labels: str, seed: int) -> Objects:
    """Photographs of a data set, drawn by `seed`. labels: "its own", or
    "drawn", which mean nothing."""
    source = everything(data)
    random = np.random.default_rng(seed)
    classes = random.permutation(np.unique(source.targets))[:CLASSES]
    learned = []
    new = []
    called = {}
    for number in classes.tolist():
        members = random.permutation(np.flatnonzero(source.targets == number)).tolist()
        learned += members[:OBJECTS]
        new += members[OBJECTS : 4 * OBJECTS]
        called |= dict.fromkeys(members, f"class {number}")
    if labels == "drawn":
        names = random.permutation([called[i] for i in learned])
        called |= dict(zip(learned, names.tolist(), strict=True))
    return Objects(source, learned, new, called)


def everything(data: str) -> Source:
    """All images of a data set, of whatever part."""
    sources = list(open_parts(data).sources.values())
    every = sources[0]
    for source in sources[1:]:
        every = merge_parts(every, source)
    return every


def trial(classifier, data: str, labels: str, named: str, seed: int) -> dict[str, float]:
    """One draw: what is found, and what is printed and true, in percent."""
    objects = drawn(data, labels, seed)
    with tempfile.TemporaryDirectory() as folder, record.computing():
        truth = plant(Path(folder), objects, named, seed)
        new = compute_features(classifier, objects.source).x[objects.new]  # from the cache
        whole = open_parts(folder).sources[""]
        shots = compute_features(classifier, whole, cached=False).x
        every = {whole.name(i): shots[i] for i in range(len(whole))}
        result = {}
        for groups, what in (("none", "without groups"), ("auto", "with groups")):
            splits = open_splits(folder, groups=groups)
            y = np.array([splits.labels.index(objects.labels[i]) for i in objects.new])
            for key, value in figures(splits, every, new, y).items():
                result[f"{key} {what}"] = value
        return {**found(merge_parts(splits.train, splits.test), truth), **result}


def figures(
    splits, every: dict[str, np.ndarray], new: np.ndarray, y: np.ndarray
) -> dict[str, float]:
    """The share of left-out answers, of the test part and of new photographs that are right."""
    train = splits.train
    probing = Probing.of(train)
    x = np.stack([every[train.name(i)] for i in range(len(train))])
    learned = probing.targets(train, Features(x, train.targets))
    fitted = probing.fit("linear", learned, train.groups)
    left_out = next(probing.left_out_quality(fitted, learned.y, train.groups))
    test = np.stack([every[splits.test.name(i)] for i in range(len(splits.test))])
    return {
        "left out": 100 * left_out.value,
        "left out, width of interval": 100 * (left_out.interval[1] - left_out.interval[0]),
        "test": right(fitted, test, splits.test.targets),
        "new": right(fitted, new, y),
    }


def right(fitted, x: np.ndarray, y: np.ndarray) -> float:
    return 100 * float((fitted.logits(torch.tensor(x)).argmax(1).numpy() == y).mean())


def found(source: Source, truth: dict[str, int]) -> dict[str, float]:
    """The share of pairs of shots of one thing that are in one group, and how many pairs of different
    things are."""
    things = np.array([truth[source.name(i)] for i in range(len(source))])
    groups = np.arange(len(source)) if source.groups is None else source.groups
    same = things[:, None] == things
    together = groups[:, None] == groups
    np.fill_diagonal(same, val=False)
    return {
        "pairs found": 100 * float(together[same].mean()),
        "wrong pairs": float((together & ~same).sum() - len(source)) / 2,
    }


def plant(folder: Path, objects: Objects, named: str, seed: int) -> dict[str, int]:
    """Write the shots into a folder for each class; returns the thing in each, by the path."""
    random = np.random.default_rng(seed)
    order = objects.learned
    if named == "by time":
        order = random.permutation(order).tolist()
    number = 1000
    seconds = 0
    truth = {}
    for i in order:
        image = Image.fromarray(open_image(objects.source[i][0], "a photograph").pixels())
        seconds += int(random.integers(30, 900))
        for _ in range(SHOTS):
            number += 1
            seconds += int(random.integers(1, 4))
            exif = Image.Exif()
            name = f"IMG_{number}"
            if named != "in turn":
                name = f"{random.integers(10**12):012x}"
            if named == "by time":
                hours = f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
                exif.get_ifd(EXIF)[TAKEN] = f"2026:05:{1 + seconds // 86400:02d} {hours}"
            path = folder / objects.labels[i] / f"{name}.jpg"
            path.parent.mkdir(exist_ok=True)
            shot(image, random).save(path, quality=int(random.integers(60, 91)), exif=exif)
            truth[str(path)] = i
    return truth


def shot(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """A photograph of what is in another."""
    width, height = image.size
    turned = image.rotate(random.uniform(-4, 4), Image.Resampling.BICUBIC)
    share = 0.86 / random.uniform(1, 1.25)  # without the corners that turning leaves empty
    across, down = random.uniform(-0.1, 0.1, 2)
    left = np.clip((1 - share) / 2 + across, 0, 1 - share) * width
    top = np.clip((1 - share) / 2 + down, 0, 1 - share) * height
    box = (left, top, left + share * width, top + share * height)
    larger = min(SIDE, 2 * max(image.size)) / max(image.size)
    size = (round(width * larger), round(height * larger))
    taken = turned.resize(size, Image.Resampling.BICUBIC, box=box)
    return ImageEnhance.Brightness(taken).enhance(2 ** random.uniform(-0.3, 0.3))


# Copies of photographs, and shots of things that are turned


def copied(data: str, how: str | int) -> dict[str, float]:
    """The pairs of copies that are found, and the pairs that are wrong."""
    source = everything(data)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        truth = {}
        for index in random.permutation(len(source))[:COPIED].tolist():
            image = Image.fromarray(open_image(source[index][0], "a photograph").pixels())
            image = image.convert("RGB")
            image.thumbnail((SIDE, SIDE))
            for copy in copies(image, how):
                path = Path(folder, source.answer(index).replace("/", "_"))
                path.mkdir(exist_ok=True)
                path /= f"{random.integers(10**12):012x}.jpg"
                copy.save(path, quality=int(random.integers(75, 95)))
                truth[str(path)] = index
        parts = open_parts(folder).sources
        whole = replace(parts[""], groups=find_bursts(parts[""]).groups)
        return {key: round(value, 1) for key, value in found(whole, truth).items()}


def copies(image: Image.Image, how: str | int) -> list[Image.Image]:
    """Three copies of a photograph."""
    width, height = image.size
    if how == "mirrored and turned":
        return [image, ImageOps.mirror(image), image.transpose(Image.Transpose.ROTATE_90)]
    if how == "cut at edges too":
        mirrored = ImageOps.mirror(image.crop((width // 20, height // 20, width, height)))
        turned = image.transpose(Image.Transpose.ROTATE_180)
        return [image, mirrored, turned.crop((0, 0, width * 19 // 20, height * 19 // 20))]
    half = 0.33 * min(width, height)  # what has no empty corner at any angle
    box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
    size = (round(2 * half), round(2 * half))
    bicubic = Image.Resampling.BICUBIC
    turned = [image.rotate(times * how, bicubic) for times in range(3)]
    return [each.resize(size, bicubic, box=box) for each in turned]


# Data sets without bursts


def grouped(data: str) -> dict[str, int]:
    """How many images of the training part are in a group with another, if all are files named one
    after the other."""
    parts = open_parts(data).sources
    source = parts.get("train", next(iter(parts.values())))
    with tempfile.TemporaryDirectory() as folder:
        for i in range(len(source)):
            label = source.answer(i) if source.target_kind == "class" else "all"
            data = source[i][0]
            if isinstance(data, np.ndarray):
                raise TypeError("expected files of images")
            path = Path(folder, label.replace("/", "_"), f"IMG_{i:05d}.png")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        splits = open_splits(folder)
    groups = splits.train.groups
    if groups is None:
        return {"images": len(source), "grouped": 0}
    groups = np.concatenate([groups, splits.test.groups])
    sizes = np.unique(groups, return_counts=True)[1]
    return {"images": len(source), "grouped": int(sizes[sizes > 1].sum())}


if __name__ == "__main__":
    main()
