"""Whether `vitkit faster` keeps its promise, and what it gains: the chosen model's loss on images that the
search has not seen, over many draws of those that it sees.

For each data set, every candidate's body computes all images once. A draw then takes some of them to learn
from and to compare by, each answered by a fit without it, as of a run whose head is solved in closed form;
chooses; and measures on all others what the chosen model loses beside the whole one. The images that
calibrate int8 are always among those that are learned from. Speeds are measured once, in turns.

    python benchmarks/faster.py --model WEIGHTS --data SET... --output FILE

`within` is in how many draws the loss on the other images is not above what was allowed; `refuted`, in how
many it is above it beyond chance (the interval of the difference, by Tango, begins above it). Other images
are few too: of 1,000 of which 1 % is answered otherwise, the loss that is seen varies by 0.3 points from
what it is.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import record
import torch

from vitkit.apps.faster.bodies import (
    Arithmetic,
    Body,
    Shape,
    calibration,
    model_of,
    opened,
    reading_of,
)
from vitkit.apps.faster.losses import SAME, ReferenceComparison, loss_of
from vitkit.apps.faster.pareto import ParetoLine, Point
from vitkit.apps.faster.subjects import CALIBRATED, SearchSubject
from vitkit.data import merge_parts, open_parts, subset
from vitkit.evaluation import Features, tango
from vitkit.exporting import Implementation, Turns, measure
from vitkit.finetuning import question, solved
from vitkit.weights import Classifier, fitted_to, load

PACKAGES = ("torch", "onnxruntime", "openvino", "nncf", "numpy", "vitkit")
EXACT = Arithmetic("openvino", "float32")
PYTORCH = Arithmetic("torch", "float32")
DEPTHS = {
    EXACT: (12, 10, 8),
    Arithmetic("openvino", "bfloat16"): (12,),
    Arithmetic("openvino", "int8", True): (12, 11, 10, 8),
}
PURPOSES = (0.5, 1.0, 2.0)  # points that may be lost
MOST = 1_000  # images of a set, so that a pass ends


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    published = load(options.model, quiet=True)

    # What an earlier call with the same output has measured stays
    content = {"sets": {}}
    if options.output is not None and options.output.exists():
        content = json.loads(options.output.read_text())
    speeds = content.get("milliseconds")
    if speeds is None:
        speeds = measured_speeds(published, options.data[0], options.rounds)
    print(speeds, flush=True)
    content = {
        **record.about(__doc__.partition("\n")[0], PACKAGES),
        "draws": options.draws,
        "milliseconds": speeds,
        "sets": content["sets"],
    }
    for data in options.data:
        name = Path(data).name
        if name not in content["sets"]:
            content["sets"][name] = of_set(published, data, options, speeds)
            record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument(
        "--learned", type=int, default=600, help="images to learn from and compare by"
    )
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    return parser


def subject_of(published: Classifier, data: str) -> SearchSubject:
    """Images of a data set, those to learn from first, and the pre-trained model with a head of zeros for
    them that reads twelve blocks. Every so-many-th image calibrates int8."""
    sources = open_parts(data).sources
    pool = sources["train"]
    for name in ("val", "test"):
        if name in sources:
            pool = merge_parts(pool, sources[name])
    pool = subset(pool, np.arange(min(len(pool), MOST)))
    config = replace(published.model.config, pool="token-gap", read_blocks=12)
    classifier, _ = fitted_to(published, config, pool.labels)
    return SearchSubject(classifier, pool, pool, question("class", pool.labels), data)


def candidates(subject: SearchSubject) -> list[tuple[Arithmetic, Shape]]:
    """What is chosen from."""
    image = tuple(subject.classifier.preprocessing.size)
    found = []
    for arithmetic, depths in DEPTHS.items():
        for blocks in depths:
            found.append((arithmetic, Shape(image, blocks)))
    return found


def name_of(arithmetic: Arithmetic, shape: Shape) -> str:
    return f"{arithmetic}, {shape.blocks} blocks"


def measured_speeds(published: Classifier, data: str, rounds: int) -> dict[str, float]:
    """Milliseconds of an image, one at a time, measured in turns: of all candidates, of the whole model in
    PyTorch, and of int8 as ONNX Runtime has it, and OpenVINO without calibration."""
    subject = subject_of(published, data)
    full = Shape(tuple(subject.classifier.preprocessing.size), 12)
    others = [
        PYTORCH,
        Arithmetic("onnx", "int8"),
        Arithmetic("openvino", "int8"),
    ]
    implementations = {}
    images = np.random.default_rng(0).integers(0, 256, (1, 3, *full.image), dtype=np.uint8)
    with TemporaryDirectory() as folder:
        trial = calibration(subject, 16)
        for arithmetic, shape in [*((each, full) for each in others), *candidates(subject)]:
            reads = reading_of(subject.classifier, shape, 1000)
            model = model_of(subject.classifier, shape, reads)
            path = Path(folder) / str(len(implementations))
            runtime, _ = opened(model, arithmetic, 0, path, trial)
            name = name_of(arithmetic, shape)
            implementations[name] = Implementation(
                str(arithmetic), arithmetic.precision, runtime.logits
            )
        speeds = measure(list(implementations.values()), images, Turns((1,), rounds, 0.4))
    return {name: speed.p50 for name, speed in zip(implementations, speeds, strict=True)}


def of_set(
    published: Classifier, data: str, options: argparse.Namespace, speeds: dict[str, float]
) -> dict:
    """What the draws of a set give."""
    subject = subject_of(published, data)
    y = subject.evaluated.targets
    read = {}
    for arithmetic, shape in candidates(subject):
        body = Body(subject, arithmetic, shape.image)
        reads = reading_of(subject.classifier, shape, options.learned)
        read[arithmetic, shape] = body.read(body.states(subject.evaluated), shape, reads)
        print(Path(data).name, name_of(arithmetic, shape), flush=True)
    learned = min(options.learned, round(0.7 * len(y)))
    draws = []
    for seed in range(options.draws):
        draws.append(draw(subject, read, y, learned, seed, speeds))
        print(Path(data).name, seed, draws[-1]["chosen"], flush=True)
    return {
        "images": len(y),
        "learned": learned,
        "unseen": len(y) - learned,
        **summary(draws),
        "one draw": draws[0]["line"],
    }


def draw(subject, read, y, learned: int, seed: int, speeds: dict[str, float]) -> dict:
    """A search on some images, and what each candidate loses on the others."""
    generator = np.random.default_rng(seed)
    calibrating = (
        np.arange(CALIBRATED) * len(y) // CALIBRATED
    )  # as Subject.for_calibration has them
    others = generator.permutation(np.setdiff1d(np.arange(len(y)), calibrating))
    seen = np.concatenate([calibrating, others[: learned - CALIBRATED]])
    unseen = others[learned - CALIBRATED :]

    # Each candidate's head, its answers by fits without each image, and to the images that are not seen
    left_out = {}
    answers = {}
    for key, x in read.items():
        probe = solved(subject.asked, Features(x[seen], y[seen]))
        left_out[key] = probe.left_out
        answers[key] = probe.logits(torch.tensor(x[unseen])).argmax(1).numpy()
    (exact, *rest) = read
    comparison = ReferenceComparison(left_out[exact], y[seen])
    of_rest = [loss_of(comparison.of(left_out[key])) for key in rest]
    points = []
    for (arithmetic, shape), loss in zip([exact, *rest], [SAME, *of_rest], strict=True):
        name = name_of(arithmetic, shape)
        milliseconds = speeds[name]
        times = speeds[name_of(PYTORCH, exact[1])] / milliseconds
        point = Point(
            name, arithmetic.library, arithmetic.precision, shape.image, shape.blocks, 0,
            milliseconds, times, 0.0, loss,
        )  # fmt: skip
        points.append(point)
    points.sort(key=lambda point: -point.milliseconds)
    line = ParetoLine(
        points[0], tuple(points), learned, subject.where, int((~comparison.is_ordering).sum()), 1
    )

    # What is lost there
    right = answers[exact] == y[unseen]
    unseen_losses = {}
    for key in read:
        own = answers[key] == y[unseen]
        lost = int((right & ~own).sum())
        won = int((own & ~right).sum())
        low, _ = tango(lost, won, len(unseen))
        unseen_losses[name_of(*key)] = (100 * (lost - won) / len(unseen), 100 * low)
    chosen = {}
    for points_lost in PURPOSES:
        name = line.fastest(points_lost / 100).name
        chosen[str(points_lost)] = (name, *unseen_losses[name])
    return {
        "chosen": chosen,
        "losses": unseen_losses,
        "accuracy": 100 * right.mean(),
        "line": [point.to_json() for point in line.best],
    }


def summary(draws: list[dict]) -> dict:
    """Over all draws: how often the promise held, what was chosen, and what each candidate lost."""
    result = {"accuracy of the whole model": round(np.mean([d["accuracy"] for d in draws]), 2)}
    for allowed in map(str, PURPOSES):
        lost = np.array([each["chosen"][allowed][1] for each in draws])
        lows = np.array([each["chosen"][allowed][2] for each in draws])
        names = [each["chosen"][allowed][0] for each in draws]
        result[f"at {allowed} points"] = {
            "within": int((lost <= float(allowed)).sum()),
            "refuted": int((lows > float(allowed)).sum()),
            "mean loss": round(lost.mean(), 3),
            "largest loss": round(lost.max(), 2),
            "chosen": {name: names.count(name) for name in sorted(set(names))},
        }
    names = list(draws[0]["losses"])
    means = {name: np.mean([each["losses"][name][0] for each in draws]) for name in names}
    result["mean loss on unseen images"] = {name: round(mean, 2) for name, mean in means.items()}
    return result


if __name__ == "__main__":
    main()
