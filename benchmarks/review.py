"""Wrong labels found by `vitkit data review` and by cleanlab, on the same planted errors.

A share of the labels of each data set is replaced by another class, drawn at random. Both get the
same features. vitkit answers each image by the closed-form fit without it; cleanlab is used as its
documentation does: probabilities of a logistic regression in 5-fold cross-validation, then
find_label_issues. Of those planted, `found` is the share that was flagged; of those flagged, `right`
is the share that was planted (the data's own wrong labels count against both).

    python benchmarks/review.py --model WEIGHTS --data SET.parquet ... --output FILE
"""

import time
from pathlib import Path

import numpy as np
import record

from vitkit.data import merge_parts, open_splits
from vitkit.evaluation import features, label_suspects, probe
from vitkit.weights import load

PACKAGES = ("torch", "numpy", "scikit-learn", "cleanlab", "vitkit")


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--share", type=float, default=0.05, help="of the labels that are replaced")
    parser.add_argument("--peers", nargs="*", default=["cleanlab"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)

    classifier = load(options.model, quiet=True).for_inference()
    results = {}
    for data in options.data:
        x, classes = _training_features(classifier, data)
        labels, planted = plant(classes, options.share)
        ways = {"vitkit": by_vitkit} | {name: PEERS[name] for name in options.peers}
        results[Path(data).name] = {
            name: judged(way, x, labels, planted) for name, way in ways.items()
        }
        for name, result in results[Path(data).name].items():
            print(
                f"{Path(data).name} {name}: found {result['found']:.0%}, right {result['right']:.0%}, "
                f"{result['seconds']:.2f} s"
            )
    content = {
        **record.about(__doc__.partition("\n")[0], PACKAGES),
        "share": options.share,
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
    x, y = features(classifier, source)
    return np.array(x), np.unique(y, return_inverse=True)[1]


def plant(classes: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) of which a share is wrong, and which: bool (N,)."""
    random = np.random.default_rng(0)
    count = classes.max() + 1
    planted = np.zeros(len(classes), bool)
    planted[random.choice(len(classes), round(share * len(classes)), replace=False)] = True
    shift = random.integers(1, count, len(classes))
    return np.where(planted, (classes + shift) % count, classes), planted


def judged(way, x: np.ndarray, labels: np.ndarray, planted: np.ndarray) -> dict:
    """How many of the planted errors a way finds, and in what time."""
    began = time.perf_counter()
    flagged = way(x, labels)
    seconds = time.perf_counter() - began
    hits = int(planted[flagged].sum())
    return {
        "planted": int(planted.sum()),
        "flagged": len(flagged),
        "found": hits / planted.sum(),
        "right": hits / max(len(flagged), 1),
        "seconds": seconds,
    }


def by_vitkit(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Indices of the labels that are probably wrong."""
    fitted = probe("linear", x, labels, labels.max() + 1)
    suspects = label_suspects(fitted.left_out.softmax(1).numpy(), labels)
    return np.array([suspect.index for suspect in suspects], int)


def by_cleanlab(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    from cleanlab.filter import find_label_issues
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probabilities = cross_val_predict(model, x, labels, cv=5, method="predict_proba")
    return find_label_issues(labels, probabilities, return_indices_ranked_by="self_confidence")


PEERS = {"cleanlab": by_cleanlab}

if __name__ == "__main__":
    main()
