"""How well images are known to be unknown: limits fitted to what is left out, on images of a class that
was kept from the classifier, and on those of another data set.

A linear probe learns all classes of a data set but one; images of that one are to be unknown, test
images of the others known. Each class is kept away in turn (of many, those with the most test images).
With --other, images of another data set are to be unknown to a probe of all classes. `auroc` is the
share of pairs, of an unknown and a known image, in which the unknown one is the stranger; `rejected`
the share of known images that are called unknown, where 5 % is asked for; `detected` that of unknown
ones.

    python benchmarks/unknown.py --model WEIGHTS --data SET ... --other SET.parquet --output FILE
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
import torch
from sklearn.metrics import roc_auc_score

from vitkit.data import open_parts, subset
from vitkit.evaluation import (
    ENOUGH,
    REJECTED,
    conformal_limit,
    features,
    fit_unknown,
    left_out_distances,
    probe,
    whitened_classes,
)
from vitkit.system.machine import autocast
from vitkit.weights import load

PACKAGES = ("torch", "numpy", "scikit-learn", "vitkit")
CLASSES = 10  # at most, that are kept away in turn
WAYS = ("probability", "logit", "distance", "both")


class Images(NamedTuple):
    """Features (N, D) and classes (N,)."""

    x: torch.Tensor
    y: torch.Tensor


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--other", help="images that no class of the data is of")
    parser.add_argument("--images", type=int, default=700, help="of a test part, at most")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)

    classifier = load(options.model, quiet=True).for_inference()
    results = {}
    other = None
    if options.other:
        other = _parts(classifier, options.other, options.images)["test"]
    for data in options.data:
        parts = _parts(classifier, data, options.images)
        name = Path(data).name
        if len(parts["train"].y.unique()) > 2:
            results[f"{name}, one class kept away"] = _mean(_classes_kept_away(parts))
        if other is not None:
            trial = judged(parts["train"], parts["test"].x, other.x)
            results[f"{name}, {Path(options.other).stem}"] = trial
    for name, ways in results.items():
        for way, result in ways.items():
            numbers = ", ".join(f"{key} {value:.3f}" for key, value in result.items())
            print(f"{name}: {way}: {numbers}")
    content = {
        **record.about(__doc__.partition("\n")[0], PACKAGES),
        "results": results,
    }
    record.write(content, options.output)
    return content


def _parts(classifier, data: str, most: int) -> dict[str, Images]:
    """The images to learn from, and those to test on: of data without parts all are to test on."""
    found = {"train": [], "test": []}
    for name, source in open_parts(data).sources.items():
        part = "train" if name in ("train", "val") else "test"
        if len(source) > most and part == "test":
            source = subset(source, np.random.default_rng(0).permutation(len(source))[:most])
        with autocast(classifier.device, "bfloat16"):
            x, y = features(classifier, source)
        found[part].append((torch.tensor(x), torch.tensor(y)))
    return {
        part: Images(*map(torch.cat, zip(*several, strict=True)))
        for part, several in found.items()
        if several
    }


def _classes_kept_away(parts: dict[str, Images]) -> Iterator[dict]:
    """What is reached without each class."""
    train, test = parts["train"], parts["test"]
    most_first = test.y.bincount().argsort(descending=True, stable=True)
    for away in most_first[:CLASSES].tolist():
        kept = train.y.unique()
        kept = kept[kept != away]
        learned = train.y != away
        known = torch.isin(test.y, kept)
        without = Images(train.x[learned], torch.searchsorted(kept, train.y[learned]))
        yield judged(without, test.x[known], test.x[test.y == away])


def judged(train: Images, known: torch.Tensor, unknown: torch.Tensor) -> dict:
    """What each way reaches: how strange the images that are learned from are to their class, by a fit
    without them, gives the limit of the class; what is strange to all classes is unknown."""
    count = int(train.y.max()) + 1
    fitted = probe("linear", train.x.numpy(), train.y.numpy(), count)
    limits = fit_unknown(train.x, train.y, fitted.left_out)
    means, whitening, centre = whitened_classes(train.x.double(), train.y, count)
    rows = (train.x.double() - centre) @ whitening
    own = left_out_distances(rows, means, train.y).sqrt()
    distance = torch.zeros(len(own), count, dtype=torch.float64)
    distance[torch.arange(len(own)), train.y] = own
    of_train = _strangeness(limits, distance, fitted.left_out)
    of_known = _strangeness(limits, _distance(limits, known), fitted.logits(known))
    of_unknown = _strangeness(limits, _distance(limits, unknown), fitted.logits(unknown))
    truth = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    results = {}
    for way in WAYS:
        own = of_train[way].gather(1, train.y[:, None])[:, 0]
        limit = _limits(own, train.y, count)
        beyond_known = (of_known[way] - limit).amin(1)
        beyond_unknown = (of_unknown[way] - limit).amin(1)
        results[way] = {
            "auroc": roc_auc_score(truth, torch.cat([beyond_known, beyond_unknown])),
            "rejected": (beyond_known > 0).double().mean().item(),
            "detected": (beyond_unknown > 0).double().mean().item(),
        }
    return results


def _limits(own: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    """The limit of each class, (K,); of one with few images that of all."""
    of_all = conformal_limit(own[own.isfinite()], 1 - REJECTED)
    limits = torch.full((count,), of_all, dtype=torch.float64)
    for k in range(count):
        members = own[y == k]
        if len(members) >= ENOUGH:
            limits[k] = conformal_limit(members, 1 - REJECTED)
    return limits


def _distance(limits, x: torch.Tensor) -> torch.Tensor:
    """To each class: (N, K)."""
    return torch.cdist((x - limits.centre) @ limits.whitening, limits.means).double()


def _strangeness(limits, distance: torch.Tensor, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """By way, (N, K): how strange images are to each class."""
    return {
        "probability": -logits.softmax(1),
        "logit": -logits,
        "distance": distance,
        "both": limits.far * distance - limits.sure * logits,
    }


def _mean(trials: Iterator[dict]) -> dict:
    """The mean over trials of every number."""
    trials = list(trials)
    keys = ("auroc", "rejected", "detected")
    return {
        way: {key: float(np.mean([trial[way][key] for trial in trials])) for key in keys}
        for way in WAYS
    }


if __name__ == "__main__":
    main()
