"""What a residual stream in bfloat16 changes: training curves beside those of a float32 stream.

    python benchmarks/residual.py --data CIFAR10 --workdir runs/residual --output FILE

Trains one model for every seed and each of both streams, on the images of --data, with the same first weights,
order, augmentation and steps; the rest of the arithmetic is that of `--precision bfloat16`. The model is as deep
as the paper's B/16, because the errors of a stream add up over its layers, and narrow.

Prints the mean loss of each stream at ten points of the curve, the mean and standard error over seeds of the
difference, and each run's accuracy on the test part. If it is interrupted, the same command continues it.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import record

from vitkit.data import Augmentation, Preprocessing
from vitkit.models import ViTConfig
from vitkit.recipes import Data, Optim, Recipe
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.record.metrics import last_metrics, read_metrics

STREAMS = ("float32", "bfloat16")
POINTS = 10  # of a curve
RECIPE = Recipe(
    model=ViTConfig(
        width=96, depth=12, mlp=384, heads=3, patch=8, image=(32, 32), pool="gap", classes=0
    ),
    data=Data(
        preprocessing=Preprocessing(size=(32, 32)),
        augmentation=Augmentation(crop="pad_crop", pad=4, flip=True),
        workers=0,
    ),
    optim=Optim(lr=1e-3, weight_decay=0.05, decay_on="kernels"),
    batch=64,
    precision="bfloat16",
    average=0.0,
    log_every=10,
)


def main() -> None:
    options = arguments()
    result = record.about(__doc__.partition("\n")[0], ("torch",), options.device)
    result["runs"] = []
    for seed in range(options.seeds):
        for residual in STREAMS:
            result["runs"].append(train(residual, seed, options))
            record.write(result, options.output)
    print(curves(result["runs"]))
    print()
    print(accuracies(result["runs"]))


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--data", required=True, help="images, with a train and a test part")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def train(residual: str, seed: int, options: argparse.Namespace) -> dict:
    """Train with one stream and one seed, in WORKDIR/STREAM-SEED; a row of the results."""
    recipe = replace(
        RECIPE,
        name=f"{residual}-{seed}",
        data=replace(RECIPE.data, source=options.data),
        residual=residual,
        seed=seed,
        optim=replace(RECIPE.optim, warmup=Span(options.steps // 20)),
        length=Span(options.steps),
        evaluate_every=Span(options.steps),
        save_every=Span(max(1, options.steps // 4)),
    )
    run_dir = options.workdir / recipe.name
    run_recipe(recipe, run_dir, options.device)
    metrics = last_metrics(run_dir)
    return {
        "residual": residual,
        "seed": seed,
        "curve": curve(run_dir, options.steps),
        "metrics": {name: metric.value for name, metric in metrics.items()},
    }


def curve(run_dir: Path, steps: int) -> list[dict]:
    """The mean training loss of each tenth of a run."""
    lines = read_metrics(run_dir / "metrics.jsonl")
    losses = {line["step"]: line["loss"] for line in lines if line["event"] == "training"}
    points = []
    for number in range(POINTS):
        first = steps * number // POINTS
        last = steps * (number + 1) // POINTS
        found = [loss for step, loss in losses.items() if first < step <= last]
        if found:
            points.append({"step": last, "loss": mean(found)})
    return points


def curves(runs: list[dict]) -> str:
    """Mean losses of both streams and their difference at each point, in Markdown."""
    lines = [
        "| steps | loss, float32 stream | loss, bfloat16 stream | difference |",
        "|---|---|---|---|",
    ]
    for number, point in enumerate(runs[0]["curve"]):
        losses = {
            residual: [run["curve"][number]["loss"] for run in runs if run["residual"] == residual]
            for residual in STREAMS
        }
        change = with_error(differences(losses))
        means = " | ".join(f"{mean(losses[residual]):.4f}" for residual in STREAMS)
        lines.append(f"| {point['step']} | {means} | {change} |")
    return "\n".join(lines)


def accuracies(runs: list[dict]) -> str:
    """Each run's accuracy on the test part, and the difference, in Markdown."""
    values = {}
    lines = ["| stream | top-1 of each seed, % | mean |", "|---|---|---|"]
    for residual in STREAMS:
        values[residual] = [
            100 * run["metrics"]["test/top1"] for run in runs if run["residual"] == residual
        ]
        each = ", ".join(f"{value:.2f}" for value in values[residual])
        lines.append(f"| {residual} | {each} | {mean(values[residual]):.2f} |")
    lines.append(f"| difference | | {with_error(differences(values))} |")
    return "\n".join(lines)


def differences(values: dict[str, list[float]]) -> list[float]:
    """The change from the float32 to the bfloat16 stream, of each seed."""
    pairs = zip(values["float32"], values["bfloat16"], strict=True)
    return [changed - plain for plain, changed in pairs]


def with_error(changes: list[float]) -> str:
    """The mean of several changes, with its standard error."""
    if len(changes) < 2:
        return f"{changes[0]:+.4f}"
    return f"{mean(changes):+.4f} (standard error {stdev(changes) / len(changes) ** 0.5:.4f})"


if __name__ == "__main__":
    main()
