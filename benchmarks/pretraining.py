"""What pre-training is worth on small images: fine-tuning from it beside the same training from scratch.

    python benchmarks/pretraining.py --data CIFAR10 --target CIFAR10_1K --workdir runs/masked --output FILE
    python benchmarks/pretraining.py --data TINY_IMAGENET --target CIFAR10 --ways scratch masked supervised --side 96 \
        --size gpu --workdir runs/pretraining --output FILE

The second mirrors the paper's comparison of no, self-supervised and supervised pre-training (Section 4.6): one pre-training
of each kind on the images of `--data`, without their labels and with them; then, for each seed, one recipe on the
`--target` from either and from random weights, at images of `--side` pixels. Interrupted, the same command goes on. All
ways have the same steps, learning rate and augmentation, which were chosen once and not tuned for any.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import mean, stdev

import torch
from loader import machine

from vitkit.data import Augmentation, Preprocessing
from vitkit.evaluate import Metric
from vitkit.models import ViTConfig
from vitkit.objectives import MaskedPatches, Supervised
from vitkit.recipes import recipe as named
from vitkit.system.span import Span
from vitkit.train import Data, Optim, Recipe, train
from vitkit.train.log import last_metrics, read_metrics
from vitkit.train.report import report

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
WAYS = {"masked": MaskedPatches(), "supervised": Supervised()}  # of pre-training


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        required=True,
        help="what is pre-trained on: a source with a train and a test part",
    )
    parser.add_argument("--target", "--few", required=True, help="what is fine-tuned on")
    parser.add_argument(
        "--ways", nargs="+", choices=["scratch", *WAYS], default=["scratch", "masked"]
    )
    parser.add_argument(
        "--size", choices=SIZES, default="laptop", help="of the model and its batch"
    )
    parser.add_argument(
        "--side", type=int, help="pixels of the fine-tuned images, more than of the pre-trained"
    )
    parser.add_argument("--steps", type=int, default=1000, help="of each pre-training")
    parser.add_argument(
        "--length", type=Span.parse, default=Span(25, "epochs"), help="of each fine-tuning"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    base = replace(SIZES[args.size], length=Span(args.steps), evaluate_every=Span(args.steps // 5))
    found = {
        "command": "python " + " ".join(hidden(sys.argv)),
        "date": str(date.today()),
        **machine(),
    }
    if args.device != "cpu" and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    found |= {"torch": torch.__version__, "pre-training": {}, "fine-tuning": []}
    for way in args.ways:
        if way != "scratch":
            run(replace(on(base, args.data), name=way, objective=WAYS[way]), args)
            report(args.workdir / way)
            found["pre-training"][way] = curve(args.workdir / way)
    evaluations = args.length._replace(n=args.length.n / 5)
    base = sized(
        replace(base, length=args.length, evaluate_every=evaluations, objective=Supervised()),
        args.side,
    )
    for seed in range(args.seeds):
        for way in args.ways:
            init = "" if way == "scratch" else str(args.workdir / way)
            recipe = replace(on(base, args.target), name=f"{way}-{seed}", init=init, seed=seed)
            seconds = run(recipe, args)
            metrics = values(last_metrics(args.workdir / recipe.name))
            found["fine-tuning"].append({"from": way, "seed": seed, "seconds": seconds, **metrics})
            args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found["fine-tuning"]))


def run(recipe: Recipe, args: argparse.Namespace) -> float:
    """Train, or go on; the seconds it took now."""
    began = time.perf_counter()
    train(recipe, args.workdir / recipe.name, args.device)
    return round(time.perf_counter() - began, 1)


def on(recipe: Recipe, source: str) -> Recipe:
    """The recipe on some data."""
    return replace(recipe, data=replace(recipe.data, source=source))


def sized(recipe: Recipe, side: int | None) -> Recipe:
    """The recipe for larger images: patches stay as they are, so there are more of them (Section 3.2)."""
    image = (side, side) if side else recipe.model.image
    preprocessing = replace(recipe.data.preprocessing, size=image)
    return replace(
        recipe,
        model=replace(recipe.model, image=image),
        data=replace(recipe.data, preprocessing=preprocessing),
    )


def curve(workdir: Path) -> list[dict]:
    """Every evaluation of a run."""
    lines = read_metrics(workdir / "metrics.jsonl")
    return [
        {"step": line["step"], **values(line["metrics"])}
        for line in lines
        if line["event"] == "evaluation"
    ]


def values(metrics: dict[str, Metric]) -> dict[str, float]:
    """The numbers alone."""
    return {name: metric.value for name, metric in metrics.items()}


def hidden(words: list[str]) -> list[str]:
    """A command without the places of one machine."""
    return [
        "benchmarks/pretraining.py",
        *(Path(word).name if "/" in word else word for word in words[1:]),
    ]


def table(rows: list[dict]) -> str:
    """Each seed's accuracy, mean and standard deviation."""
    lines = ["| from | top-1, % of each seed | mean | standard deviation |", "|---|---|---|---|"]
    for way in dict.fromkeys(row["from"] for row in rows):
        top = [100 * row["test/top1"] for row in rows if row["from"] == way]
        spread = f"{stdev(top):.2f}" if len(top) > 1 else ""
        lines.append(
            f"| {way} | {', '.join(f'{x:.2f}' for x in top)} | {mean(top):.2f} | {spread} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
