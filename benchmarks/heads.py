"""What the first model of a folder reads, and what it gains by it: the class token of the last block (Eq. 4),
that and the mean of the patches of twelve blocks, the image's four quarters beside them, and its sixteen
parts.

Heads are solved for on the training and validation images, and measured on the test images. All readings
come from one pass. `left out` is what the choice goes by; `finetune` is what `vitkit finetune` keeps. Every
split after the first draws as many images of each class to learn from at random, and tests on all others.

Beside them are scikit-learn's heads: logistic regression, its strength by cross-validation, and linear
discriminant analysis with shrinkage. On the class token both are on standardised features. On what was chosen,
in the first split, they get coordinates in the span of the images, in which the distances of images are
the same: of tens of thousands of numbers neither would end.

    python benchmarks/heads.py --model WEIGHTS --data SET... --output FILE
"""

import argparse
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitkit.data import merge_parts, open_parts
from vitkit.evaluation import Features, compute_features, row_products
from vitkit.finetuning import question, solved
from vitkit.finetuning.candidates import best, candidate
from vitkit.finetuning.head_inputs import kinds_for, part_of, shared_products, widest_of
from vitkit.models import OF_THE_PAPER
from vitkit.weights import Classifier, fitted_to, load

PACKAGES = ("torch", "numpy", "scikit-learn", "vitkit")
STRENGTHS = np.logspace(-4, 1, 6)  # of scikit-learn's logistic regression, its C
ON_TOKEN = "on the class token"
ON_CHOSEN = "on what was chosen"


class Split(NamedTuple):
    """Features of the images to learn from, and of those to test on."""

    learned: Features
    test: Features


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)
    results = {}
    for data in options.data:
        name = Path(data).name
        splits = 1 if name in options.one_split else options.splits
        results[name] = measured(options.model, data, splits)
        content = {**about, "heads": results}
        record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument(
        "--one-split",
        nargs="*",
        default=(),
        help="sets that have images of one scene among those to learn from, which another split would put on both sides",
    )
    parser.add_argument("--output", type=Path)
    return parser


def measured(model: str, data: str, splits: int) -> dict:
    """What each reading reaches on a data set, on the mean of its splits."""
    sources = open_parts(data).sources
    learned = sources["train"]
    if "val" in sources:
        learned = merge_parts(learned, sources["val"])
    test = sources["test"]

    # One pass over all images, at the widest reading
    published = load(model, quiet=True)
    kinds = list(kinds_for(published.model.config, len(learned)))
    of_all = widest_of(kinds)
    widest = replace(published.model.config, pool=of_all.pool, read_blocks=of_all.blocks)
    classifier, _ = fitted_to(published, replace(widest, classes=0), test.labels)
    with record.computing():
        began = time.perf_counter()
        every = compute_features(classifier.for_inference(), learned)
        seconds = time.perf_counter() - began
        others = compute_features(classifier.for_inference(), test)

    result = {
        "images": len(learned),
        "test images": len(test),
        "features, s": round(seconds, 1),
        "splits": splits,
    }
    rows = []
    for number in range(splits):
        split = Split(every, others)
        if number:
            split = drawn(split, number)
        rows.append(of_split(classifier, kinds, split, test.labels, number == 0))
        print(Path(data).name, number, rows[-1], flush=True)
    for name in rows[0]:
        values = [row[name] for row in rows if name in row]
        if isinstance(values[0], str):
            result[name] = dict(Counter(values))
        else:
            result[name] = mean_of(values)
    return result


def drawn(split: Split, seed: int) -> Split:
    """Other images to learn from, as many of each class, and all others to test on."""
    x = np.concatenate([split.learned.x, split.test.x])
    y = np.concatenate([split.learned.y, split.test.y])
    random = np.random.default_rng(seed)
    is_learned = np.zeros(len(y), dtype=bool)
    for number, count in enumerate(np.bincount(split.learned.y)):
        is_learned[random.permutation(np.flatnonzero(y == number))[:count]] = True
    return Split(Features(x[is_learned], y[is_learned]), Features(x[~is_learned], y[~is_learned]))


def mean_of(values: list[dict]) -> dict:
    """The means of figures over splits, and the standard error of the accuracy on the images to test on."""
    result = {name: round(float(np.mean([each[name] for each in values])), 1) for name in values[0]}
    if len(values) > 1:
        tested = [each["test"] for each in values]
        result["error of test"] = round(float(np.std(tested, ddof=1) / np.sqrt(len(tested))), 2)
    return result


def of_split(
    classifier: Classifier, kinds: list, split: Split, labels: tuple[str, ...], all_heads: bool
) -> dict:
    """What each reading reaches, and scikit-learn's heads."""
    asked = question("class", labels)
    width = classifier.model.config.width
    of_all = widest_of(kinds)
    began = time.perf_counter()
    products = shared_products(split.learned, of_all, kinds, width)
    result = {}
    tried = []
    for kind in kinds:
        learned, new = (part_of(part, of_all, kind, width) for part in split)
        whole = solved(asked, learned, products=products.get(kind))
        each = candidate(
            f"{kind.pool} of {kind.blocks}", classifier, asked, whole.left_out, learned.y
        )
        tried.append(each._replace(scores=-each.losses))
        predicted = whole.logits(torch.tensor(new.x)).argmax(1).numpy()
        result[each.name] = {
            "left out": 100 * each.held_out.value,
            "test": accuracy(predicted, new.y),
        }
    chosen = [each.name for each in tried].index(best(tried).name)
    seconds = time.perf_counter() - began
    result["finetune"] = {**result[tried[chosen].name], "solved, s": seconds}
    result["chosen"] = tried[chosen].name

    # Others' heads
    learned, new = (part_of(part, of_all, OF_THE_PAPER, width) for part in split)
    result |= of_scikit_learn(ON_TOKEN, learned, new)
    if all_heads and chosen:
        learned, new = (part_of(part, of_all, kinds[chosen], width) for part in split)
        result |= of_scikit_learn(ON_CHOSEN, *in_their_span(learned, new))
    return result


def accuracy(predicted: np.ndarray, truth: np.ndarray) -> float:
    return 100 * float((predicted == truth).mean())


def of_scikit_learn(what: str, learned: Features, new: Features) -> dict:
    """What scikit-learn's heads reach on such features."""
    logistic = LogisticRegressionCV(
        Cs=STRENGTHS,
        cv=3,
        max_iter=1000,
        l1_ratios=(0,),
        scoring="accuracy",
        use_legacy_attributes=False,
    )
    discriminant = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    if what == ON_TOKEN:
        logistic = make_pipeline(StandardScaler(), logistic)
    result = {}
    for name, model in (("logistic regression", logistic), ("discriminant analysis", discriminant)):
        began = time.perf_counter()
        model.fit(learned.x, learned.y)
        reached = accuracy(model.predict(new.x), new.y)
        result[f"scikit-learn's {name} {what}"] = {
            "test": reached,
            "solved, s": time.perf_counter() - began,
        }
    return result


def in_their_span(learned: Features, new: Features) -> tuple[Features, Features]:
    """Both in the coordinates of the span of the images to learn from, of a mean variance of 1."""
    eigenvalues, u = torch.linalg.eigh(row_products(torch.from_numpy(learned.x)))
    kept = eigenvalues > 1e-9 * eigenvalues.max()
    mean = learned.x.mean(0, dtype=np.float64).astype(np.float32)
    basis = u[:, kept].numpy() / np.sqrt(eigenvalues[kept].numpy())
    directions = (learned.x - mean).T @ basis.astype(np.float32)
    scale = np.sqrt(len(learned.x) / eigenvalues.mean().item())
    return tuple(
        Features(((part.x - mean) @ directions).astype(np.float64) * scale, part.y)
        for part in (learned, new)
    )


if __name__ == "__main__":
    main()
