"""Wrong labels listed by `vitkit data review` and by cleanlab, on the same planted errors.

A share of the labels of each data set is replaced: by another class, drawn at random (uniform), or by
the class that its own is most confused with (confusable). vitkit and cleanlab judge the same
left-out logits of the closed-form fit to the labels with errors. `found` is the share of the planted
errors that are listed; `right` the share of those listed that were planted (the data's own wrong
labels count against both). `estimated`, `low` and `high` are what vitkit says of their number, and
`precision` is the average precision of an order of all images: by the probability of an error that
vitkit lists by, by the left-out probability of the label, and by that less the greatest other one.
Figures are means over the draws.

    python benchmarks/review.py --model WEIGHTS --data SET ... --output FILE
"""

import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import record
from scipy.special import softmax
from sklearn.metrics import average_precision_score

from vitkit.data import merge_parts, open_splits
from vitkit.evaluation import compute_features, fit_probe
from vitkit.evaluation.reports.label_noise import shown_classes, wrong_labels
from vitkit.weights import load

PACKAGES = ("torch", "numpy", "scipy", "cleanlab", "vitkit")
KINDS = ("uniform", "confusable")


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--shares", nargs="+", type=float, default=[0, 0.05, 0.1, 0.2])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)

    classifier = load(options.model, quiet=True).for_inference()
    results = []
    for data in options.data:
        x, classes = _training_features(classifier, data)
        for share in options.shares:
            for kind in KINDS if share else ("none",):
                result = {"data": Path(data).name, "kind": kind, "share": share}
                draws = options.draws if share else 1
                result |= mean_of_draws(x, classes, share, kind, draws)
                results.append(result)
                print(_sentence(result), flush=True)
    content = {
        **about,
        "draws": options.draws,
        "results": results,
    }
    record.write(content, options.output)
    return content


def _training_features(classifier, data: str) -> tuple[np.ndarray, np.ndarray]:
    """The features and classes of the images to learn from."""
    splits = open_splits(data)
    source = splits.train
    if splits.val is not None:
        source = merge_parts(splits.train, splits.val)
    x, y = compute_features(classifier, source)
    return np.array(x), np.unique(y, return_inverse=True)[1]


def mean_of_draws(x: np.ndarray, classes: np.ndarray, share: float, kind: str, draws: int) -> dict:
    """What is listed with this share of errors: the mean over the draws of them."""
    count = classes.max() + 1
    confused = most_confused(x, classes)
    found = []
    for seed in range(draws):
        random = np.random.default_rng(seed)
        labels, planted = plant(classes, share, kind, confused, random)
        if len(np.unique(labels)) < count:
            continue  # no image of a class is left, so no fit knows it
        logits = fit_probe("linear", x, labels, count).left_out.numpy()
        found.append(judged(logits, labels, planted))
    names = [name for name in found[0] if all(name in each for each in found)]
    return {name: float(np.mean([each[name] for each in found])) for name in names}


def most_confused(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The class (K,) that gets the most probability of each class's images, after it."""
    count = classes.max() + 1
    probabilities = fit_probe("linear", x, classes, count).left_out.softmax(1).numpy()
    confusion = np.zeros((count, count))
    np.add.at(confusion, classes, probabilities)
    np.fill_diagonal(confusion, -1)
    return confusion.argmax(1)


def plant(
    classes: np.ndarray, share: float, kind: str, confused: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) of which a share is wrong, and which: bool (N,)."""
    count = classes.max() + 1
    planted = np.zeros(len(classes), bool)
    planted[random.choice(len(classes), round(share * len(classes)), replace=False)] = True
    other = confused[classes]
    if kind == "uniform":
        other = (classes + random.integers(1, count, len(classes))) % count
    return np.where(planted, other, classes), planted


def judged(logits: np.ndarray, labels: np.ndarray, planted: np.ndarray) -> dict:
    """What is listed, beside what was planted."""
    began = time.perf_counter()
    wrong = wrong_labels(logits, labels)
    result = {"seconds": time.perf_counter() - began, "planted": planted.sum()}
    result["judged"] = wrong is not None
    if wrong is not None:
        listed = [suspect.index for suspect in wrong.suspects]
        result |= {"estimated": len(listed), "low": wrong.low, "high": wrong.high}
        result["held"] = wrong.low <= planted.sum() <= wrong.high
        result |= _hits("vitkit", listed, planted)
    if find_spec("cleanlab"):
        result |= _hits("cleanlab", by_cleanlab(logits, labels), planted)
    if planted.any():
        for name, order in orders(logits, labels).items():
            result[f"precision/{name}"] = average_precision_score(planted, order)
    return result


def _hits(name: str, listed, planted: np.ndarray) -> dict:
    """How many of the planted errors are in a list, and how much of the list they are."""
    hits = planted[np.array(listed, int)].sum()
    figures = {f"{name}/listed": len(listed), f"{name}/right": hits / max(len(listed), 1)}
    if planted.any():
        figures[f"{name}/found"] = hits / planted.sum()
    return figures


def orders(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """How wrong each label (N,) is, by several measures."""
    rows = np.arange(len(labels))
    others = softmax(logits, axis=1)
    own = others[rows, labels]
    others[rows, labels] = -1
    return {
        "error": 1 - shown_classes(logits, labels)[rows, labels],
        "own": -own,
        "margin": others.max(1) - own,
    }


def by_cleanlab(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    from cleanlab.filter import find_label_issues

    probabilities = softmax(logits, axis=1)
    return find_label_issues(labels, probabilities, return_indices_ranked_by="self_confidence")


def _sentence(result: dict) -> str:
    """A line of a terminal."""
    name = f"{result['data']} {result['kind']} {result['share']:.0%}"
    if "estimated" not in result:
        return f"{name}: labels were not checked"
    words = [
        f"{name}: {result['planted']:.0f} planted, {result['estimated']:.0f} estimated "
        f"({result['low']:.0f} to {result['high']:.0f})"
    ]
    for way in ("vitkit", "cleanlab"):
        if f"{way}/found" in result:
            words.append(
                f"{way} found {result[f'{way}/found']:.0%}, right {result[f'{way}/right']:.0%}"
            )
    return "; ".join(words)


if __name__ == "__main__":
    main()
