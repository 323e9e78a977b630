"""Whether what vitkit prints of a closed form is true of images that it has not seen.

Of a data set, some images a class are drawn, a head is solved for on them, and what is printed of it is
compared with what it reaches on all other images of the set: the share of left-out answers that are
right, its interval, the sets of possible classes, and the share that is called unknown, of every class.
That is done for many draws.

- balanced: 2, 3, 5, 10, 20 and 40 images a class;
- rare: one class has 6 images, the others together many times as many, beside scikit-learn's balanced
  ridge and logistic regression on the same features;
- noise: normally distributed features whose classes mean nothing. What is printed should be chance;
- with --shots-of, five shots of each object, and numbers and several classes an image (shots.py), before
  and after intervals and tests knew of groups and of the fit's own variance. Features are kept in --kept.

    python benchmarks/honesty.py --model WEIGHTS --data SET... --output FILE
    python benchmarks/honesty.py --model WEIGHTS --shots-of SET... --numbers-of SET... --output FILE
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
import shots
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitkit.data import merge_parts, open_parts
from vitkit.evaluation import Probe, compute_features, fit_probe, fit_unknown, left_out_quality
from vitkit.weights import load

PACKAGES = ("torch", "numpy", "scikit-learn", "vitkit")
SHOTS = (2, 3, 5, 10, 20, 40)
NOISE = ((50, 2), (50, 4), (20, 5), (6, 6))  # classes, and images of each
WIDTH = 192  # of the features of noise
RARE = 6  # images of a rare class,
COMMON = 400  # and of the others in all, at most
CLASSES = 10  # at most, that are rare in turn
NUMBERS = ("bright", "red", "several")  # that shots.py learns


class Images(NamedTuple):
    """Features (N, D) and classes (N,)."""

    x: np.ndarray
    y: np.ndarray


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)
    classifier = load(options.model, quiet=True).for_inference()
    if options.shots_of or options.numbers_of:
        results = in_groups(classifier, options)
        content = {**about, **results}
        record.write(content, options.output)
        return content
    results = {"balanced": [], "rare": [], "noise": list(noise(options.draws))}
    for each in results["noise"]:
        print(" ".join(f"{key} {value}" for key, value in each.items()))
    for data in options.data:
        every = images_of(classifier, data)
        for result in balanced(every, options.draws):
            results["balanced"].append({"data": Path(data).name, **result})
            show(results["balanced"][-1])
        for result in rare(every, options.draws):
            results["rare"].append({"data": Path(data).name, **result})
            show(results["rare"][-1])
    content = {**about, **results}
    record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="*", default=())
    parser.add_argument("--shots-of", nargs="*", default=(), help="sets, of which shots are taken")
    parser.add_argument(
        "--numbers-of", nargs="*", default=(), help="sets of which each image is alone"
    )
    parser.add_argument("--kept", type=Path, default=Path(".kept"), help="folder for features")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--output", type=Path)
    return parser


def in_groups(classifier, options: argparse.Namespace) -> dict[str, list]:
    """The modes of shots.py: where five images show one object, and of numbers and several classes."""
    results = {"evaluated": [], "left out": []}
    for sets, count in ((options.shots_of, shots.SHOTS), (options.numbers_of, 1)):
        for data in sets:
            seen = shots.seen_of(classifier, data, count, options.kept)
            name = {"data": Path(data).name}
            if count > 1:
                for result in shots.evaluated(seen, options.draws):
                    results["evaluated"].append(name | result)
                    show(results["evaluated"][-1])
            for kind in NUMBERS:
                for result in shots.left_out(seen, kind, options.draws):
                    results["left out"].append(name | result)
                    show(results["left out"][-1])
    return results


def show(result: dict) -> None:
    print(", ".join(f"{key} {value}" for key, value in result.items()), flush=True)


def images_of(classifier, data: str) -> Images:
    """All images of a data set, of whatever part."""
    sources = list(open_parts(data).sources.values())
    every = sources[0]
    for source in sources[1:]:
        every = merge_parts(every, source)
    with record.computing():
        return Images(*compute_features(classifier, every))


# As many images of each class


def balanced(every: Images, draws: int) -> Iterator[dict]:
    """What is printed and what is true, for each number of images a class."""
    classes = len(np.unique(every.y))
    for each in SHOTS:
        if np.bincount(every.y).min() < 1.5 * each:
            continue
        trials = []
        for seed in range(draws):
            learned, new = drawn(every, dict.fromkeys(range(classes), each), seed)
            trials.append(honest(learned, new, is_balanced=False))
        yield {"images a class": each, "classes": classes, **summary(trials)}


def drawn(every: Images, shots: dict[int, int], seed: int) -> tuple[Images, Images]:
    """So many images of each class, at random, and all others."""
    random = np.random.default_rng(seed)
    is_learned = np.zeros(len(every.y), dtype=bool)
    for k, count in shots.items():
        members = np.flatnonzero(every.y == k)
        is_learned[random.permutation(members)[:count]] = True
    known = np.isin(every.y, list(shots))
    return (
        Images(every.x[is_learned], every.y[is_learned]),
        Images(every.x[~is_learned & known], every.y[~is_learned & known]),
    )


def honest(learned: Images, new: Images, is_balanced: bool) -> dict:
    """What is printed of a head, and what is true of it."""
    classes, y = np.unique(learned.y, return_inverse=True)
    fitted = fit_probe("linear", learned.x, y, len(classes), is_balanced)
    metric = next(left_out_quality(fitted, y, balanced=is_balanced))
    truth = np.searchsorted(classes, new.y)
    right = answers(fitted, new.x) == truth
    accuracy = by_class(right, truth).mean()  # of as many images of each class
    return {
        "printed": metric.value,
        "accuracy": accuracy,
        "held": metric.interval[0] <= accuracy <= metric.interval[1],
        "width": metric.interval[1] - metric.interval[0],
        **doubts(fitted, learned.x, y, new.x, truth),
    }


def doubts(fitted: Probe, x: np.ndarray, y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> dict:
    """The share of new images in whose set the right class is, and that are called unknown: on average
    over classes, and of the worst class."""
    limits = fit_unknown(torch.tensor(x), torch.tensor(y), fitted.left_out)
    rows = torch.tensor(new)
    logits = fitted.logits(rows)
    is_open = limits.is_open(logits.softmax(1))
    covered = is_open.gather(1, torch.tensor(truth)[:, None])[:, 0].numpy()
    unknown = limits.is_unknown(rows, logits).numpy()
    return {
        "covered": by_class(covered, truth),
        "unknown": by_class(unknown, truth),
        "open": float(is_open.sum(1).double().mean()),
    }


def answers(fitted: Probe, x: np.ndarray) -> np.ndarray:
    return fitted.logits(torch.tensor(x)).argmax(1).numpy()


def by_class(values: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The mean of each class that has images."""
    return np.array([values[truth == k].mean() for k in np.unique(truth)])


def summary(trials: list[dict]) -> dict:
    """Means over draws, in percent, with the standard error of the difference."""
    differences = np.array([100 * (each["printed"] - each["accuracy"]) for each in trials])
    covered = np.mean([each["covered"] for each in trials], 0)
    unknown = np.mean([each["unknown"] for each in trials], 0)
    return {
        "printed": percent(trials, "printed"),
        "accuracy": percent(trials, "accuracy"),
        "difference": round(float(differences.mean()), 2),
        "standard error": round(float(differences.std(ddof=1) / np.sqrt(len(trials))), 2),
        "interval holds": percent(trials, "held"),
        "interval's width": percent(trials, "width"),
        "covered": round(100 * float(covered.mean()), 1),
        "covered, worst class": round(100 * float(covered.min()), 1),
        "called unknown": round(100 * float(unknown.mean()), 1),
        "called unknown, worst class": round(100 * float(unknown.max()), 1),
        "possible classes": round(float(np.mean([each["open"] for each in trials])), 2),
    }


def percent(trials: list[dict], key: str) -> float:
    return round(100 * float(np.mean([each[key] for each in trials])), 2)


# A rare class


def rare(every: Images, draws: int) -> Iterator[dict]:
    """One class of 6 images among the others, each class in turn: what is printed and true, and the
    recall of the rare class by each method."""
    counts = np.bincount(every.y)
    if counts.min() < 2 * RARE:
        return
    classes = np.argsort(-counts, kind="stable")[:CLASSES]
    common = COMMON // (len(classes) - 1)
    trials = []
    recalls = {name: [] for name in ("vitkit", *METHODS)}
    accuracies = {name: [] for name in recalls}
    for seed in range(draws):
        few = int(classes[seed % len(classes)])
        shots = {int(k): int(min(common, counts[k] // 2)) for k in classes}
        shots[few] = RARE
        learned, new = drawn(every, shots, seed)
        trials.append(honest(learned, new, is_balanced=True))
        known, y = np.unique(learned.y, return_inverse=True)
        truth = np.searchsorted(known, new.y)
        position = int(np.searchsorted(known, few))
        fitted = fit_probe("linear", learned.x, y, len(known), balanced=True)
        of_methods = {"vitkit": answers(fitted, new.x)}
        for name, method in METHODS.items():
            of_methods[name] = method().fit(learned.x, y).predict(new.x)
        for name, predicted in of_methods.items():
            shares = by_class(predicted == truth, truth)
            recalls[name].append(shares[position])
            accuracies[name].append(shares.mean())
    result = {"classes": len(classes), "common": common, **summary(trials)}
    for name in recalls:
        result[f"{name}: recall"] = round(100 * float(np.mean(recalls[name])), 1)
        result[f"{name}: balanced accuracy"] = round(100 * float(np.mean(accuracies[name])), 1)
    yield result


def _ridge() -> object:
    strengths = np.logspace(-3, 5, 17)
    return make_pipeline(StandardScaler(), RidgeClassifierCV(strengths, class_weight="balanced"))


def _logistic() -> object:
    model = LogisticRegression(class_weight="balanced", max_iter=2000)
    strengths = {"C": np.logspace(-4, 1, 6)}
    model = GridSearchCV(model, strengths, cv=3, scoring="balanced_accuracy")
    return make_pipeline(StandardScaler(), model)


METHODS: dict[str, Callable[[], object]] = {
    "scikit-learn ridge": _ridge,
    "scikit-learn logistic": _logistic,
}


# Classes that mean nothing


def noise(draws: int) -> Iterator[dict]:
    """What is printed where nothing can be known."""
    for classes, each in NOISE:
        shares = []
        y = np.tile(np.arange(classes), each)
        for seed in range(draws):
            x = np.random.default_rng(seed).normal(size=(len(y), WIDTH)).astype(np.float32)
            fitted = fit_probe("linear", x, y, classes)
            shares.append(100 * next(left_out_quality(fitted, y)).value)
        yield {
            "classes": classes,
            "images a class": each,
            "printed": round(float(np.mean(shares)), 2),
            "chance": round(100 / classes, 2),
            "standard error": round(float(np.std(shares, ddof=1) / np.sqrt(draws)), 2),
        }


# The tables of docs/accuracy.md


def table_rows(results: dict) -> list[str]:
    """The rows of the page's tables, in Markdown."""
    rows = []
    for each in results["balanced"]:
        rows.append(
            f"| `{name_of(each)}` | {each['images a class']} | {each['accuracy']:.1f} % | {difference(each)} "
            f"| {each['interval holds']:.0f} % | {each['covered, worst class']:.0f} % "
            f"| {each['called unknown, worst class']:.1f} % "
            f"| {each['possible classes']:.1f} of {each['classes']} |"
        )
    for each in results["rare"]:
        heads = []
        for head in ("vitkit", *METHODS):
            recall = f"{each[f'{head}: recall']:.0f} %"
            if head == "vitkit":
                recall = f"**{recall}**"
            heads.append(f"{recall}, {each[f'{head}: balanced accuracy']:.1f} %")
        rows.append(
            f"| `{name_of(each)}` | {each['classes']} x {each['common']} | {difference(each)} "
            f"| {each['interval holds']:.0f} % | {' | '.join(heads)} |"
        )
    for each in results["noise"]:
        rows.append(
            f"| {each['classes']} x {each['images a class']} "
            f"| {each['printed']:.2f} ± {each['standard error']:.2f} % | {each['chance']:.2f} % |"
        )
    return rows


def name_of(row: dict) -> str:
    """A data set without the end of its files' names."""
    return row["data"].removesuffix("-*.parquet")


def difference(row: dict) -> str:
    return f"{row['difference']:+.1f} ± {row['standard error']:.1f}"


if __name__ == "__main__":
    main()
