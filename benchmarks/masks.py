"""How good a model of every pixel is that `vitkit finetune --masks` makes in closed form, beside three others on
the same images: a linear head on the same tokens that is trained by AdamW, a k-NN on the tokens, and a small U-Net from scratch
that gets as much time.

All are measured at the size of the images; intervals, and those of the differences, resample the test images together.
Seconds are those of the processor on one thread, which other work beside it disturbs least: they include reading the images
and computing features for all but the U-Net. The trained head's number of epochs and learning rate are chosen on a fifth of
the training images; it is then trained on all.

    python benchmarks/masks.py --model MODEL --data masks_street --ignore 11 --folder FOLDER --output FILE

With `--minutes 2` (or other numbers) it measures instead what these minutes add to the closed form on the default grid: the
model that is kept, and the fine-tuned one if there was time for it. Both read the larger grid if one was tried and kept. The
minutes are those of the processor too.

With `--tokens 784 1176` (or other numbers) it measures instead the closed form on grids of so many patches, each beside
the first one: by cross-validated predictions of the training images, and on the test images. All predictions are compared at
the size of the images.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import record
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitkit
from vitkit.data import Columns, Masked, masked, open_source
from vitkit.evaluation import SegmentationScores, count_pixels
from vitkit.evaluation.metrics.metric import resampled
from vitkit.evaluation.metrics.segmentation import PixelCounts
from vitkit.finetuning.segmentation.closed_form import Example, blocks_to_try, shares_of
from vitkit.finetuning.segmentation.first_model import FirstModel, first_model, read
from vitkit.runtimes import map_runtime
from vitkit.runtimes.maps import likeliest, logit_maps
from vitkit.weights import Classifier, dense

PACKAGES = ("torch", "numpy", "vitkit")
NEIGHBOURS = 20
KEPT = 8_192  # patches that a k-NN remembers
SHARPNESS = 0.07  # of the weights of neighbours (Wu et al. 2018)
RATES = (1e-3, 1e-2)
EPOCHS = (10, 30)
BATCH = 2_048  # patches
SIDE = (240, 320)  # of a U-Net's crops
WIDTHS = (16, 32, 64, 128)


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    if options.minutes:
        return fine_tuning(options)
    if options.tokens:
        return grids(options)
    about = record.about(__doc__.partition(",")[0], PACKAGES)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, test = (opened(options, part) for part in ("train", "test"))
    published = vitkit.load(options.model, quiet=True)
    scores: dict[str, SegmentationScores] = {}
    seconds: dict[str, float] = {}

    # Ours
    began = time.process_time()
    classifier = whole(options, train)
    seconds["closed form"] = time.process_time() - began
    runtime = map_runtime(classifier, "cpu", "float32")
    scores["closed form"] = scored(test, lambda i, picture: logit_maps(runtime, picture))

    # The features that other heads read
    config = published.model.config
    bare = dense(published, (), blocks_to_try(config.width, config.depth)[-1]).for_inference()
    began = time.process_time()
    examples, _, _ = read(bare, train, torch.device("cpu"), "float32")
    reading = time.process_time() - began
    for name, fit in (("linear head by AdamW", trained), ("k-NN", neighbours)):
        began = time.process_time()
        head = fit(examples, len(train.labels))
        seconds[name] = reading + time.process_time() - began
        scores[name] = scored(test, of_head(bare, head))

    # From scratch
    network = unet(train, seconds["closed form"])
    seconds["U-Net from scratch"] = seconds["closed form"]
    scores["U-Net from scratch"] = scored(test, of_network(network, bare))

    results = {}
    for name, own in scores.items():
        metrics = {metric.name: metric.to_json() for metric in own.metrics()}
        results[name] = {"seconds": round(seconds[name], 1), "metrics": metrics}
        if name != "closed form":
            results[name]["miou of the closed form minus this"] = difference(
                scores["closed form"], own
            )
        print(name, results[name]["seconds"], metrics["miou"], flush=True)
    return write_results(about, options, train, test, results)


def write_results(
    about: dict, options: argparse.Namespace, train: Masked, test: Masked, results: dict
) -> dict:
    """Write the results with what they were measured on; returns both."""
    content = {
        **about,
        "data": options.data,
        "images": {"train": len(train), "test": len(test)},
        "results": results,
    }
    record.write(content, options.output)
    return content


def fine_tuning(options: argparse.Namespace) -> dict:
    """The models of `vitkit finetune --masks --minutes`, and the closed form alone, on the test images."""
    about = record.about("What fine-tuning adds to a model of every pixel in closed form", PACKAGES)
    torch.set_num_threads(1)
    test = opened(options, "test")
    classifier = whole(options, opened(options, "train"))
    runtime = map_runtime(classifier, "cpu", "float32")
    first = scored(test, lambda i, picture: logit_maps(runtime, picture))
    results = {}
    for minutes in options.minutes:
        with tempfile.TemporaryDirectory() as folder, by_the_processor():
            written = made_within(options, minutes, Path(folder))
            models = {"kept": f"{folder}/run/model"}
            if "tuning" in written:
                models["fine-tuned"] = f"{folder}/run/fine-tuned"
            scores = {"closed form": first}
            for name, path in models.items():
                runtime = map_runtime(vitkit.load(path, quiet=True), "cpu", "float32")
                scores[name] = scored(
                    test, lambda i, picture, own=runtime: logit_maps(own, picture)
                )
            steps = steps_of(Path(folder) / "run" / "fine-tuned")
        rows = {}
        for name, own in scores.items():
            metrics = {metric.name: metric.to_json() for metric in own.metrics()}
            rows[name] = {"metrics": metrics}
            if name != "closed form":
                rows[name]["miou minus that of the closed form"] = difference(own, first)
            print(minutes, name, metrics["miou"], flush=True)
        names = ("chosen", "held_out", "left_out", "grid", "tuning", "seconds", "reading")
        about_run = {name: written.get(name) for name in names} | {"steps": steps}
        print(minutes, about_run["chosen"], steps, about_run["seconds"], flush=True)
        results[f"{minutes:g} minutes"] = {"run": about_run, "models": rows}
    content = {**about, "data": options.data, "images": {"test": len(test)}, "results": results}
    record.write(content, options.output)
    return content


def grids(options: argparse.Namespace) -> dict:
    """The closed form on grids of several sizes, beside the first of them."""
    about = record.about("What larger grids add to a model of every pixel in closed form", PACKAGES)
    torch.set_num_threads(1)
    train, test = (opened(options, part) for part in ("train", "test"))
    published = vitkit.load(options.model, quiet=True)
    nobody = np.zeros(0, np.int64)
    left_out: dict[int, dict[int, PixelCounts]] = {}
    scores: dict[int, SegmentationScores] = {}
    results = {}
    for tokens in options.tokens:
        began = time.process_time()
        model = first_model(published, train, nobody, tokens, torch.device("cpu"), "float32")
        seconds = time.process_time() - began
        left_out[tokens] = cross_validated_counts(model, train)
        began = time.process_time()
        runtime = map_runtime(model.classifier, "cpu", "float32")
        scores[tokens] = scored(test, lambda i, picture, own=runtime: logit_maps(own, picture))
        measuring = time.process_time() - began

        # The images that were cross-validated on both grids: memory limits how many are
        first = options.tokens[0]
        shared = sorted(left_out[first].keys() & left_out[tokens].keys())
        own, other = (
            SegmentationScores.of(train.labels, [counts[i] for i in shared])
            for counts in (left_out[tokens], left_out[first])
        )
        results[f"{tokens} patches"] = {
            "seconds": round(seconds, 1),
            "seconds of measuring the test images": round(measuring, 1),
            "reading": model.best.reading._asdict() | {"rare": model.best.rare},
            "cross-validated images": len(shared),
            "cross-validated": compared(own, other),
            "test": compared(scores[tokens], scores[first]),
        }
        print(json.dumps({tokens: results[f"{tokens} patches"]}), flush=True)
    return write_results(about, options, train, test, results)


def cross_validated_counts(model: FirstModel, train: Masked) -> dict[int, PixelCounts]:
    """The counts of the cross-validated predictions at the size of the images, by the number of the image."""
    counts = {}
    for i, shares in zip(model.numbers.tolist(), model.best.maps, strict=True):
        truth = train.mask(i)
        predicted = likeliest(model.to_logits.maps(shares).numpy(), truth.shape)
        counts[i] = count_pixels(truth, predicted, len(train.labels))
    return counts


def compared(own: SegmentationScores, first: SegmentationScores) -> dict:
    """The mean IoU and the boundary IoU, and the difference of the former."""
    metrics = {metric.name: metric.value for metric in own.metrics(each_class=False)}
    return {
        "miou": metrics["miou"],
        "boundary_iou": metrics["boundary_iou"],
        "miou minus that of the first": difference(own, first),
        "boundary IoU minus that of the first": difference(own, first, boundary_iou),
    }


class by_the_processor:
    """A block in which time is that of this process's processor: other work on the machine does not count."""

    def __enter__(self) -> None:
        self.before = time.monotonic, time.perf_counter
        time.monotonic = time.perf_counter = time.process_time

    def __exit__(self, *error) -> None:
        time.monotonic, time.perf_counter = self.before


def made_within(options: argparse.Namespace, minutes: float, folder: Path) -> dict:
    """Make a model in FOLDER/run, as the command does; returns the record of its run."""
    images = folder / "images"
    images.mkdir()
    for part in ("train", "val", "test"):
        file = options.folder.absolute() / f"{options.data}-{part}.parquet"
        if file.exists():
            (images / f"{part}.parquet").symlink_to(file)
    vitkit.finetune(
        str(options.model),
        str(images),
        masks="mask",
        ignore=options.ignore,
        minutes=minutes,
        workdir=folder / "run",
        device="cpu",
    )
    return json.loads((folder / "run" / "masks.json").read_text())


def steps_of(run: Path) -> int:
    """The steps that a fine-tuning has taken; 0 without one."""
    if not (run / "model").exists():
        return 0
    return int(vitkit.load(run, quiet=True).origin["steps"])


def opened(options: argparse.Namespace, part: str) -> Masked:
    """A part of the images with their masks."""
    where = str(options.folder / f"{options.data}-{part}.parquet")
    source = open_source(where, Columns(target="none"))
    parts, _ = masked({"": source}, where, "mask", None, options.ignore)
    return parts[""]


def whole(options: argparse.Namespace, train: Masked) -> Classifier:
    """The model that `vitkit finetune --masks` makes of all training images."""
    from vitkit.finetuning.segmentation import run
    from vitkit.finetuning.segmentation.request import MaskRequest

    request = MaskRequest(str(options.model), "", "mask", None, options.ignore, Columns(), None)
    with tempfile.TemporaryDirectory() as folder, replaced_parts(train):
        published = vitkit.load(options.model, quiet=True)
        run.make(request, published, Path(folder), torch.device("cpu"), "float32")
        return vitkit.load(folder, quiet=True)


@contextmanager
def replaced_parts(train: Masked) -> Iterator[None]:
    """A block in which a run has these training images, and no others."""
    from vitkit.finetuning.segmentation import beginning, request, run

    before = request.read_parts
    parts = request.Parts({"train": train}, {}, ())
    for module in (beginning, run):
        module.read_parts = lambda _: parts
    try:
        yield
    finally:
        for module in (beginning, run):
            module.read_parts = before


def scored(test: Masked, maps_of: Callable) -> SegmentationScores:
    """The scores of a function from the number of an image and its picture to logits, float32 (K, h, w)."""
    counts = []
    for i in range(len(test)):
        picture, truth = test.pair(i)
        predicted = likeliest(maps_of(i, picture), picture.size)
        counts.append(count_pixels(truth, predicted, len(test.labels)))
    return SegmentationScores.of(test.labels, counts)


def difference(
    ours: SegmentationScores,
    other: SegmentationScores,
    iou: Callable[[SegmentationScores, np.ndarray], np.ndarray] = SegmentationScores.iou,
) -> dict:
    """The difference of the mean IoU, its standard error and its interval, by resampling the images of both."""

    def statistic(rows: np.ndarray) -> np.ndarray:
        return np.array([np.nanmean(iou(ours, rows)) - np.nanmean(iou(other, rows))])

    drawn = resampled(statistic, len(ours))[:, 0]
    value = float(statistic(np.arange(len(ours)))[0])
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return {"value": value, "standard error": float(drawn.std()), "interval": [low, high]}


def boundary_iou(scores: SegmentationScores, rows: np.ndarray) -> np.ndarray:
    """The boundary IoU of each class over some images, float64 (K,): NaN for a class without boundaries."""
    either = scores.boundary_either[rows].sum(0)
    inside = scores.boundary_right[rows].sum(0)
    return np.where(either > 0, inside / np.maximum(either, 1), np.nan)


def of_head(bare: Classifier, head: Callable[[Tensor], Tensor]) -> Callable:
    """The maps of a head on tokens, (N, M) -> (N, K), interpolated as a model's are."""

    def maps(i: int, picture) -> np.ndarray:
        image = torch.from_numpy(bare.preprocessing.array(picture)[None])
        features = bare.features(image)[0]
        patch = bare.preprocessing.patch
        grid = (image.shape[2] // patch[0], image.shape[3] // patch[1])
        planes = head(features).mT.unflatten(1, grid)[None]
        return F.interpolate(planes, scale_factor=patch[0], mode="bilinear")[0].numpy()

    return maps


def patches_of(examples: list[Example], classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features float16 (P, M), shares (P, K) and how much of each patch counts (P,), of all patches."""
    columns = [shares_of(example.mask, example.grid, classes) for example in examples]
    return (
        torch.cat([example.features for example in examples]),
        torch.cat([shares for shares, _ in columns]),
        torch.cat([known for _, known in columns]),
    )


def trained(examples: list[Example], classes: int) -> Callable[[Tensor], Tensor]:
    """A linear head trained by AdamW on the cross-entropy with the shares of classes."""
    held_out = examples[::5]
    kept = [example for number, example in enumerate(examples) if number % 5]
    tried = {}
    for rate in RATES:
        for epochs in EPOCHS:
            head = fitted(kept, classes, rate, epochs)
            tried[rate, epochs] = miou_of(head, held_out, classes)
    return fitted(examples, classes, *max(tried, key=tried.get))


def fitted(
    examples: list[Example], classes: int, rate: float, epochs: int
) -> Callable[[Tensor], Tensor]:
    x, shares, known = patches_of(examples, classes)
    head = nn.Linear(x.shape[1], classes)
    steps = epochs * (len(x) // BATCH)
    optimiser = torch.optim.AdamW(head.parameters(), rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,))
        losses = F.cross_entropy(head(x[rows].float()), shares[rows], reduction="none")
        (losses * known[rows]).mean().backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    return torch.no_grad()(head)


def miou_of(head: Callable[[Tensor], Tensor], examples: list[Example], classes: int) -> float:
    counts = []
    for example in examples:
        planes = head(example.features.float()).mT.unflatten(1, example.grid)[None]
        maps = F.interpolate(planes, example.mask.shape, mode="bilinear")[0]
        counts.append(count_pixels(example.mask, maps.argmax(0).byte().numpy(), classes))
    return float(np.nanmean(SegmentationScores.of([str(k) for k in range(classes)], counts).iou()))


def neighbours(examples: list[Example], classes: int) -> Callable[[Tensor], Tensor]:
    """The shares of the most similar patches, of those that are remembered."""
    x, shares, known = patches_of(examples, classes)
    rows = torch.randperm(len(x))[:KEPT]
    memory = F.normalize(x[rows].float(), dim=1)
    shares = shares[rows] * known[rows, None]

    def vote(features: Tensor) -> Tensor:
        similar, nearest = (F.normalize(features, dim=1) @ memory.mT).topk(NEIGHBOURS)
        weights = (similar / SHARPNESS).softmax(1)
        return (weights[..., None] * shares[nearest]).sum(1)

    return vote


class UNet(nn.Module):
    """Ronneberger et al. 2015, small: two convolutions a level, added skips."""

    def __init__(self, classes: int):
        super().__init__()
        inputs = (3, *WIDTHS[:-1])
        self.down = nn.ModuleList(block(a, b) for a, b in zip(inputs, WIDTHS, strict=True))
        pairs = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
        self.up = nn.ModuleList(block(a + b, b) for a, b in pairs)
        self.head = nn.Conv2d(WIDTHS[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, down in enumerate(self.down):
            x = down(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for up, skip in zip(self.up, skips[-2::-1], strict=True):
            x = up(torch.cat([F.interpolate(x, skip.shape[2:], mode="bilinear"), skip], 1))
        return self.head(x)


def block(inputs: int, outputs: int) -> nn.Module:
    layers = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def unet(train: Masked, seconds: float) -> nn.Module:
    """A U-Net trained from scratch for as many seconds of the processor."""
    network = UNet(len(train.labels)).train()
    optimiser = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=1e-3)
    random = np.random.default_rng(0)
    began = time.process_time()
    while (spent := time.process_time() - began) < seconds:
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * (1 - spent / seconds)
        images, masks = zip(*(crop(train, random) for _ in range(4)), strict=True)
        logits = network(torch.stack(images))
        F.cross_entropy(logits, torch.stack(masks), ignore_index=255).backward()
        optimiser.step()
        optimiser.zero_grad()
    return network.eval()


def crop(train: Masked, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A random crop of a random image, mirrored or not, and of its mask."""
    picture, mask = train.pair(int(random.integers(len(train))))
    pixels = picture.pixels()
    pad = [(0, max(0, side - length)) for side, length in zip(SIDE, mask.shape, strict=True)]
    pixels = np.pad(pixels, (*pad, (0, 0)))
    mask = np.pad(mask, pad, constant_values=255)
    top, left = (
        random.integers(length - side + 1) for side, length in zip(SIDE, mask.shape, strict=True)
    )
    window = (slice(top, top + SIDE[0]), slice(left, left + SIDE[1]))
    image = torch.from_numpy(pixels[window].copy()).permute(2, 0, 1) / 127.5 - 1
    truth = torch.from_numpy(mask[window].astype(np.int64))
    if random.random() < 0.5:
        return image.flip(2), truth.flip(1)
    return image, truth


def of_network(network: nn.Module, bare: Classifier) -> Callable:
    """The maps of a U-Net at the size of the image."""

    @torch.no_grad()
    def maps(i: int, picture) -> np.ndarray:
        image = torch.from_numpy(picture.pixels().copy()).permute(2, 0, 1)[None] / 127.5 - 1
        height, width = image.shape[2:]
        padded = F.pad(image, (0, -width % 8, 0, -height % 8))
        return network(padded)[0, :, :height, :width].numpy()

    return maps


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="a pre-trained model")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument(
        "--data", default="masks_street", help="NAME of NAME-train.parquet and NAME-test.parquet"
    )
    parser.add_argument("--ignore", type=int, help="value of the masks whose pixels do not count")
    parser.add_argument(
        "--minutes",
        type=float,
        nargs="*",
        default=(),
        help="measure fine-tuning within these minutes",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="*",
        default=(),
        help="measure the closed form on grids of so many patches",
    )
    parser.add_argument("--output", type=Path, help="file for the results, JSON")
    return parser


if __name__ == "__main__":
    main()
