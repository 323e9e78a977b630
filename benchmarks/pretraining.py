"""What masked patch prediction is worth on small images: fine-tuning from it beside the same training from scratch.

    python benchmarks/pretraining.py --data CIFAR10 --few CIFAR10_1K --workdir runs/pretraining --output FILE

One pre-training on all training images, without their labels; then, for each seed, the same recipe on a few labelled ones from
those weights and from random ones. Interrupted, the same command goes on. Both sides have the same steps, learning rate and
augmentation, which were chosen once and not tuned for either.
"""

import argparse
import json
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import mean, stdev

import torch
from loader import machine

from vitkit.data import Augmentation, Preprocessing
from vitkit.inspection import report
from vitkit.models import ViTConfig
from vitkit.train import Data, MaskedPatches, Optim, Recipe, Span, train
from vitkit.train.log import last_metrics, read_metrics

BASE = Recipe(
    model=ViTConfig(width=96, depth=4, mlp=192, heads=3, patch=4, image=(32, 32), pool="gap", classes=0),
    data=Data(preprocessing=Preprocessing(size=(32, 32)), augmentation=Augmentation(crop="pad_crop", pad=4), workers=0),
    optim=Optim(lr=1e-3, weight_decay=0.05, decay_on="kernels", warmup=Span(50)),
    batch=128,
    save_every=Span(200),
    log_every=20,
)

LENGTH = Span(25, "epochs")  # of fine-tuning


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="all images: a source with a train and a test part")
    parser.add_argument("--few", required=True, help="the same classes with few labels")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000, help="of pre-training, 128 images each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    first = args.workdir / "masked"
    recipe = replace(BASE, name="masked", objective=MaskedPatches(), length=Span(args.steps), evaluate_every=Span(200))
    train(on(recipe, args.data), first, args.device)
    report(first)
    rows = []
    for seed in range(args.seeds):
        for init in ("", str(first)):
            name = f"few-{'pre-trained' if init else 'scratch'}-{seed}"
            recipe = replace(BASE, name=name, init=init, seed=seed, length=LENGTH, evaluate_every=Span(5, "epochs"))
            train(on(recipe, args.few), args.workdir / name, args.device)
            metrics = last_metrics(args.workdir / name)
            rows.append({"from": "masked patches" if init else "scratch", "seed": seed, **metrics})
    found = {"command": "python " + " ".join(hidden(sys.argv)), "date": str(date.today()), **machine()}
    found |= {"torch": torch.__version__, "pre-training": curve(first), "fine-tuning": rows}
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def on(recipe: Recipe, source: str) -> Recipe:
    """The recipe on some data."""
    return replace(recipe, data=replace(recipe.data, source=source))


def curve(workdir: Path) -> list[dict]:
    """Every evaluation of a run, and the speed of the training before it."""
    lines = read_metrics(workdir / "metrics.jsonl")
    return [line for line in lines if line["event"] == "evaluation"]


def hidden(words: list[str]) -> list[str]:
    """A command without the places of one machine."""
    return ["benchmarks/pretraining.py", *(Path(word).name if "/" in word else word for word in words[1:])]


def table(found: dict) -> str:
    """Each seed's accuracy, mean and standard deviation."""
    lines = ["| from | top-1, % of each seed | mean | standard deviation |", "|---|---|---|---|"]
    for begin in ("scratch", "masked patches"):
        top = [100 * row["test/top1"] for row in found["fine-tuning"] if row["from"] == begin]
        spread = f"{stdev(top):.2f}" if len(top) > 1 else ""
        lines.append(f"| {begin} | {', '.join(f'{x:.2f}' for x in top)} | {mean(top):.2f} | {spread} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
