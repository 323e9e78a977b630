"""What pre-training is worth on small images: fine-tuning from it, and from random weights.

    python benchmarks/pretraining.py --data CIFAR10 --target CIFAR10_1K \\
        --workdir runs/masked --output FILE
    python benchmarks/pretraining.py --data TINY_IMAGENET --target CIFAR10 \\
        --ways scratch masked supervised --side 96 --size gpu \\
        --workdir runs/pretraining --output FILE

1. Pre-trains the same model once in every way but "scratch", on the images of --data: by masked
   patches, without their labels, or supervised, with them.
2. Fine-tunes it from each, and from random weights, on --target, once for every seed.

All fine-tuning runs have the same steps, learning rate and augmentation, which were chosen once
and tuned for no way. With --side their images are larger than those of the pre-training, so there
are more patches. The second command mirrors the paper's comparison of no, self-supervised and
supervised pre-training (Section 4.6). If it is interrupted, the same command continues it.

Prints the test accuracy of every way: each seed's, mean and standard deviation. Writes that, and
the evaluations of every pre-training.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import record
import torch

from vitkit.data import Augmentation, Preprocessing
from vitkit.evaluation import Metric
from vitkit.models import ViTConfig
from vitkit.objectives import MaskedPatches, Supervised
from vitkit.recipes import Data, Optim, Recipe
from vitkit.recipes import recipe as named
from vitkit.system.span import Span
from vitkit.training import report, run_recipe
from vitkit.training.record.metrics import last_metrics, read_metrics

# The model and its training, without data and objective: for two cores, and for a GPU
PACKAGES = ("torch", "vitkit")
LAPTOP = Recipe(
    model=ViTConfig(
        width=96, depth=4, mlp=192, heads=3, patch=4, image=(32, 32), pool="gap", classes=0
    ),
    data=Data(
        preprocessing=Preprocessing(size=(32, 32)),
        augmentation=Augmentation(crop="pad_crop", pad=4),
        workers=0,
    ),
    optim=Optim(lr=1e-3, weight_decay=0.05, decay_on="kernels", warmup=Span(50)),
    batch=128,
    save_every=Span(200),
    log_every=20,
)
TINY = named("tiny-imagenet")
GPU = replace(
    TINY,
    data=replace(TINY.data, augmentation=Augmentation(crop="pad_crop", pad=8)),
    optim=replace(TINY.optim, warmup=Span(500)),
    average=0.0,
    compile=True,
    save_every=Span(1000),
)
SIZES = {"laptop": LAPTOP, "gpu": GPU}
PRETRAINING = {"masked": MaskedPatches(), "supervised": Supervised()}


def main() -> None:
    options = arguments()
    result = about(options.device)
    for way in options.ways:
        if way != "scratch":
            result["pre-training"][way] = pretrain(way, options)
    for seed in range(options.seeds):
        for way in options.ways:
            result["fine-tuning"].append(finetune(way, seed, options))
            record.write(result, options.output)
    print(table(result["fine-tuning"]))


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument(
        "--data", required=True, help="images to pre-train on, with a train and a test part"
    )
    parser.add_argument("--target", required=True, help="images to fine-tune on")
    parser.add_argument(
        "--ways", nargs="+", choices=["scratch", *PRETRAINING], default=["scratch", "masked"]
    )
    parser.add_argument(
        "--size", choices=SIZES, default="laptop", help="of the model and its batch"
    )
    parser.add_argument("--side", type=int, help="pixels of the images in fine-tuning")
    parser.add_argument("--steps", type=int, default=1000, help="of each pre-training")
    parser.add_argument(
        "--length", type=Span.parse, default=Span(25, "epochs"), help="of each fine-tuning"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def about(device: str) -> dict:
    """The beginning of the results file."""
    used = "cpu"
    if device != "cpu" and torch.cuda.is_available():
        used = "cuda"
    return {
        **record.about(__doc__.partition("\n")[0], PACKAGES, used),
        "pre-training": {},
        "fine-tuning": [],
    }


def pretrain(way: str, options: argparse.Namespace) -> list[dict]:
    """Pre-train in one way, in WORKDIR/WAY; every evaluation of the run."""
    recipe = replace(
        on_images(SIZES[options.size], options.data),
        name=way,
        objective=PRETRAINING[way],
        length=Span(options.steps),
        evaluate_every=Span(options.steps // 5),
    )
    run_dir = options.workdir / way
    run_recipe(recipe, run_dir, options.device)
    report(run_dir)
    lines = read_metrics(run_dir / "metrics.jsonl")
    evaluations = [line for line in lines if line["event"] == "evaluation"]
    return [{"step": line["step"], **values(line["metrics"])} for line in evaluations]


def finetune(way: str, seed: int, options: argparse.Namespace) -> dict:
    """Fine-tune from one way's weights, in WORKDIR/WAY-SEED; a row of the results."""
    init = ""
    if way != "scratch":
        init = str(options.workdir / way)
    base = SIZES[options.size]
    recipe = replace(
        on_images(base, options.target),
        name=f"{way}-{seed}",
        init=init,
        seed=seed,
        objective=Supervised(),
        length=options.length,
        evaluate_every=options.length._replace(n=options.length.n / 5),
    )
    if options.side:
        recipe = with_side(recipe, options.side)
    run_dir = options.workdir / recipe.name
    began = time.perf_counter()
    run_recipe(recipe, run_dir, options.device)
    seconds = round(time.perf_counter() - began, 1)
    return {"from": way, "seed": seed, "seconds": seconds, **values(last_metrics(run_dir))}


def on_images(recipe: Recipe, source: str) -> Recipe:
    """The recipe with these images."""
    return replace(recipe, data=replace(recipe.data, source=source))


def with_side(recipe: Recipe, side: int) -> Recipe:
    """The recipe for larger images: patches keep their size, so there are more (Section 3.2)."""
    size = (side, side)
    preprocessing = replace(recipe.data.preprocessing, size=size)
    return replace(
        recipe,
        model=replace(recipe.model, image=size),
        data=replace(recipe.data, preprocessing=preprocessing),
    )


def values(metrics: dict[str, Metric]) -> dict[str, float]:
    """The numbers alone."""
    return {name: metric.value for name, metric in metrics.items()}


def table(rows: list[dict]) -> str:
    """Each seed's accuracy, mean and standard deviation, in Markdown."""
    lines = ["| from | top-1, % of each seed | mean | standard deviation |", "|---|---|---|---|"]
    for way in dict.fromkeys(row["from"] for row in rows):
        accuracies = [100 * row["test/top1"] for row in rows if row["from"] == way]
        each = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        spread = ""
        if len(accuracies) > 1:
            spread = f"{stdev(accuracies):.2f}"
        lines.append(f"| {way} | {each} | {mean(accuracies):.2f} | {spread} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
