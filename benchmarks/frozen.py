"""What a model's frozen features are worth on several data sets: 5- and 10-shot accuracy, nearest
neighbours and the linear probe, as a table in Markdown.

Each data set needs a train and a test part. Few shots are drawn from the train part; neighbours and
the probe know the train and the val part. Features are kept in the cache, so that a second run takes
seconds.

    python benchmarks/frozen.py --model MODEL --data FOLDER/*_1k-test.parquet
"""

import argparse
import time
from pathlib import Path

import numpy as np
import record
import torch

from vitkit.data import open_splits
from vitkit.evaluate import Fewshot, Metric, Part, Subject, features
from vitkit.evaluate.metric import share_right
from vitkit.evaluate.neighbours import voted
from vitkit.evaluate.probe import probe
from vitkit.weights import Classifier, load

PACKAGES = ("torch", "numpy", "pillow", "scikit-learn", "vitkit")
NEIGHBOURS = 20
COLUMNS = ("5-shot/top1", "10-shot/top1", "neighbours/top1", "probe/top1", "probe/left_out")


def main() -> None:
    options = arguments()
    classifier = load(options.model).for_inference()
    results = {}
    for data in names(options.data):
        began = time.perf_counter()
        results[Path(data).name] = {metric.name: metric for metric in measured(classifier, data)}
        print(f"{data}: {time.perf_counter() - began:.0f} s", flush=True)
    text = table(results)
    print(text)
    result = {
        "measures": "accuracy of frozen features: few-shot (mean of 3 draws), neighbours, probe",
        "command": record.command(),
        "date": record.today(),
        "machine": record.machine(),
        "versions": record.versions(PACKAGES),
        "results": {
            data: {name: metric.to_json() for name, metric in metrics.items()}
            for data, metrics in results.items()
        },
    }
    record.write(result, options.output)


def names(data: list[str]) -> list[str]:
    """The names of the data sets: a file of a test part stands for all of its data set."""
    return sorted({each.removesuffix("-test.parquet") for each in data})


def measured(classifier: Classifier, data: str) -> list[Metric]:
    """All metrics of a data set."""
    splits = open_splits(data)
    shots = Fewshot().measure(Subject(classifier), Part(splits.test, None, splits.train))
    metrics = list(shots)

    # Neighbours and the probe, on all that is not the test part
    known = [features(classifier, part) for part in (splits.train, splits.val) if part]
    x = np.concatenate([part.x for part in known])
    y = np.concatenate([part.y for part in known])
    x_test, y_test = features(classifier, splits.test)
    classes, numbers = np.unique(y, return_inverse=True)
    votes = voted(torch.tensor(x), torch.tensor(numbers), NEIGHBOURS, torch.tensor(x_test))
    metrics.append(right("neighbours/top1", classes[votes.numpy()] == y_test))
    fitted = probe("linear", x, numbers, len(classes))
    answers = fitted.logits(torch.tensor(x_test)).argmax(1).numpy()
    metrics.append(right("probe/top1", classes[answers] == y_test))
    metrics.append(right("probe/left_out", fitted.left_out.argmax(1).numpy() == numbers))
    return metrics


def right(name: str, answers: np.ndarray) -> Metric:
    """The share of right answers, bool (N,)."""
    return share_right(name, int(answers.sum()), len(answers))


def table(results: dict[str, dict[str, Metric]]) -> str:
    """The results in Markdown, with half of the interval's width; below them the means."""
    lines = [f"| data | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for data, metrics in results.items():
        cells = []
        for name in COLUMNS:
            low, high = metrics[name].interval
            cells.append(f"{100 * metrics[name].value:.1f} ± {50 * (high - low):.1f}")
        lines.append(f"| {data} | {' | '.join(cells)} |")
    means = []
    for name in COLUMNS:
        values = [metrics[name].value for metrics in results.values()]
        means.append(f"{100 * sum(values) / len(values):.1f}")
    lines.append(f"| mean of {len(results)} | {' | '.join(means)} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True, help="a model, as vitkit evaluate takes it")
    parser.add_argument("--data", nargs="+", required=True, help="data sets, or their test parts")
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
