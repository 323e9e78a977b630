"""What the first model of a folder reads, and what it gains by it: the class token of the last block (Eq. 4),
that and the mean of the patches of twelve blocks, and the image's four quarters beside them.

Heads are solved for on the training and validation images, and measured on the test images. All readings
come from one pass. `left out` is what the choice goes by; `chosen` is what `vitkit finetune` keeps.

Beside them are scikit-learn's heads: on the class token logistic regression, its strength by
cross-validation, and linear discriminant analysis with shrinkage; on what was chosen ridge regression
with a Gaussian kernel, its strength and width by cross-validation.

    python benchmarks/heads.py --model WEIGHTS --data SET... --output FILE
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import record
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitkit.data import merge_parts, open_parts
from vitkit.evaluation import Features, features
from vitkit.quick import TOKEN, best, candidate, kinds_for, part_of, question, solved, widest_of
from vitkit.system.machine import autocast
from vitkit.weights import fitted_to, load

PACKAGES = ("torch", "numpy", "scikit-learn", "vitkit")


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    results = {Path(data).name: measured(options.model, data) for data in options.data}
    content = {**record.about(__doc__.partition("\n")[0], PACKAGES), "heads": results}
    record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--output", type=Path)
    return parser


def measured(model: str, data: str) -> dict:
    """What each reading reaches on a data set."""
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
    with autocast(torch.device("cpu"), "auto"):
        began = time.perf_counter()
        every = features(classifier.for_inference(), learned)
        seconds = time.perf_counter() - began
        others = features(classifier.for_inference(), test)

    # Each reading
    asked = question("class", test.labels)
    width = widest.width
    result = {"images": len(learned), "test images": len(test), "features, s": round(seconds, 1)}
    tried = []
    accuracies = {}
    for kind in kinds:
        name = f"{kind.pool} of {kind.blocks}"
        x = part_of(every, of_all, kind, width)
        began = time.perf_counter()
        whole = solved(asked, x)
        seconds = time.perf_counter() - began
        each = candidate(name, classifier, asked, whole.left_out, x.y)
        tried.append(each._replace(scores=-each.losses))
        new = part_of(others, of_all, kind, width)
        accuracies[name] = accuracy(whole.logits(torch.tensor(new.x)).argmax(1).numpy(), new.y)
        result[name] = {
            "left out": round(100 * each.held_out.value, 1),
            "test": accuracies[name],
            "solved, s": round(seconds, 1),
        }
        print(Path(data).name, name, result[name], flush=True)
    chosen = [each.name for each in tried].index(best(tried).name)
    result["chosen"] = tried[chosen].name

    # Others' heads
    token = part_of(every, of_all, TOKEN, width)
    new_token = part_of(others, of_all, TOKEN, width)
    wide = part_of(every, of_all, kinds[chosen], width)
    new_wide = part_of(others, of_all, kinds[chosen], width)
    result["scikit-learn"] = {
        "logistic regression on the class token": logistic(token, new_token),
        "discriminant analysis on the class token": discriminant(token, new_token),
        "kernel ridge on what was chosen": kernel_ridge(wide, new_wide),
    }
    print(Path(data).name, result["chosen"], result["scikit-learn"], flush=True)
    return result


def accuracy(predicted: np.ndarray, truth: np.ndarray) -> float:
    return round(100 * float((predicted == truth).mean()), 1)


def logistic(learned: Features, new: Features) -> float:
    strengths = {"C": np.logspace(-4, 1, 6)}
    model = GridSearchCV(LogisticRegression(max_iter=2000), strengths, cv=3)
    fitted = make_pipeline(StandardScaler(), model).fit(learned.x, learned.y)
    return accuracy(fitted.predict(new.x), new.y)


def discriminant(learned: Features, new: Features) -> float:
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    return accuracy(model.fit(learned.x, learned.y).predict(new.x), new.y)


def kernel_ridge(learned: Features, new: Features) -> float:
    center = learned.x.mean(0)
    x = (learned.x - center).astype(np.float64)
    typical = np.median(np.square(euclidean_distances(x[:500])))
    targets = np.eye(learned.y.max() + 1)[learned.y]
    settings = {"alpha": np.logspace(-4, -1, 4), "gamma": np.array([0.25, 0.5, 1]) / typical}
    folds = KFold(5, shuffle=True, random_state=0)
    model = GridSearchCV(KernelRidge(kernel="rbf"), settings, cv=folds).fit(x, targets)
    return accuracy(model.predict(new.x - center).argmax(1), new.y)


if __name__ == "__main__":
    main()
