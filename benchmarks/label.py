"""What it takes to label a folder with `vitkit label`, by a simulated person: how good a model is after so many
labels, beside other ways to choose which; how many clicks a session takes; and whether what it says of itself is
true.

Labels: photographs of the training and validation parts are asked about in rounds, one a class at a time of the
first two and then two, by vitkit's `next_to_label`, at random, by the smallest margin, by TypiClust (Hacohen and
others, 2022) and by k-means (the photograph next to each centre); all models are the one that a session solves.
Accuracy is that of the test images.

Sessions: a person answers every question of `LabelSession`, rightly, or wrongly one in twenty times; the effort is a
keystroke for a photograph or a screen, and a click for each photograph taken out of it.

    python benchmarks/label.py --model WEIGHTS --data SET... --output FILE
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import record
from sklearn.cluster import KMeans

from vitkit.apps.label import next_to_label
from vitkit.apps.label.head import solve, unsureness
from vitkit.apps.label.session import LabelSession
from vitkit.data import Source, merge_parts, open_parts
from vitkit.evaluation import compute_features
from vitkit.weights import load

PACKAGES = ("torch", "numpy", "scikit-learn", "vitkit")
BUDGETS = (1, 2, 3, 5, 8, 12, 20)  # labels a class
SEEDS = 3
NEAREST = 20  # photographs by which TypiClust tells how typical one is
MOST_CLUSTERS = 500
REACHED = 0.95  # of the accuracy of all labels
LOOKED_AT = 20  # answers between two looks at what a session says of itself
WORTH_TELLING = 20  # photographs without a label, below which that is not looked at


def main(argv: list[str] | None = None) -> dict:
    options = arguments().parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)
    classifier = load(options.model, quiet=True).for_inference()
    results = {}
    told = {}
    for data in options.data:
        of_this = told.setdefault(Path(data).name, [])
        pool, labels, new, truth = both(classifier, data)
        result = {"photographs": len(pool), "classes": int(labels.max()) + 1}
        result["accuracy"] = by_method(pool, labels, new, truth)
        for wrong in (0.0, 0.05):
            name = "session" if not wrong else "session, one answer in twenty wrong"
            made = []
            for seed in range(options.seeds):
                sat, looks = session(pool, labels, new, truth, wrong, seed)
                made.append(sat)
                if not wrong:
                    of_this += looks
            result[name] = {key: median([each[key] for each in made]) for key in made[0]}
        result["what it says of itself"] = summary(of_this)
        results[Path(data).name] = result
        print(Path(data).name, json.dumps(result), flush=True)
    content = {
        **about,
        "sets": results,
        "what it says of itself": summary([each for looks in told.values() for each in looks]),
    }
    record.write(content, options.output)
    return content


def arguments() -> argparse.ArgumentParser:
    parser = record.parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="sessions of each set")
    parser.add_argument("--output", type=Path)
    return parser


def both(classifier, data: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features and classes of the photographs to label, and of those to test on."""
    sources = open_parts(data).sources
    pool = sources["train"]
    if "val" in sources:
        pool = merge_parts(pool, sources["val"])
    return (*seen(classifier, pool), *seen(classifier, sources["test"]))


def seen(classifier, source: Source) -> tuple[np.ndarray, np.ndarray]:
    with record.computing():
        found = compute_features(classifier, source)
    return np.array(found.x), found.y


# Labels, by several ways to choose them


def by_method(pool, labels, new, truth) -> dict[str, list[float]]:
    """Accuracy at each budget, of each way to choose; means over SEEDS where it draws."""
    count = int(labels.max()) + 1
    everything = round(100 * accuracy(solve(pool, labels), new, truth), 1)
    found = {"all labels": everything, "labels a class": list(BUDGETS)}
    for name, (choose, draws) in METHODS.items():
        runs = []
        for seed in range(SEEDS if draws else 1):
            runs.append(by_budget(pool, labels, new, truth, choose, np.random.default_rng(seed)))
        found[name] = [round(100 * value, 1) for value in np.mean(runs, 0).tolist()]
        print(f"  {count} classes, {name}: {found[name]}", flush=True)
    return found


def by_budget(pool, labels, new, truth, choose, draws) -> list[float]:
    """Accuracy at each budget."""
    count = int(labels.max()) + 1
    given = np.full(len(pool), -1)
    reached = []
    for budget in BUDGETS:
        while (given >= 0).sum() < min(budget * count, len(pool)):
            wanted = min(budget * count - int((given >= 0).sum()), max(1, count // 2))
            chosen = choose(pool, given, wanted, draws)
            given[chosen] = labels[chosen]
        known = given >= 0
        value = (truth == given[known][0]).mean()
        if len(np.unique(given[known])) > 1:
            value = accuracy(solve(pool[known], given[known]), new, truth)
        reached.append(float(value))
    return reached


def accuracy(head, new, truth) -> float:
    return float((head.classes[head.scores(new).argmax(1).numpy()] == truth).mean())


def ours(pool, given, count, draws):
    return next_to_label(pool, given, count)


def at_random(pool, given, count, draws):
    return draws.permutation(np.flatnonzero(given < 0))[:count]


def smallest_margin(pool, given, count, draws):
    known = given >= 0
    if len(np.unique(given[known])) < 2:
        return at_random(pool, given, count, draws)
    unsure = unsureness(solve(pool[known], given[known]).scores(pool)).numpy()
    unsure[known] = -1
    return np.argsort(-unsure, kind="stable")[:count]


def typiclust(pool, given, count, draws):
    """The most typical photograph of each of the largest clusters that have no label."""
    known = np.flatnonzero(given >= 0)
    clusters = min(len(known) + count, MOST_CLUSTERS)
    found = KMeans(clusters, n_init=1, random_state=int(draws.integers(2**31))).fit(pool).labels_
    labelled = np.bincount(found[known], minlength=clusters)
    sizes = np.bincount(found, minlength=clusters)
    chosen = []
    while len(chosen) < count:
        order = np.lexsort((-np.where(sizes >= 5, sizes, 0), labelled))
        members = np.flatnonzero((found == order[0]) & (given < 0))
        members = np.setdiff1d(members, chosen)
        if not len(members):
            labelled[order[0]] = len(pool)
            continue
        distances = np.sort(np.linalg.norm(pool[members][:, None] - pool[members], axis=2), 1)
        near = distances[:, 1 : NEAREST + 1]
        best = members[near.mean(1).argmin()] if near.shape[1] else members[0]
        chosen.append(int(best))
        labelled[order[0]] += 1
    return np.array(chosen)


def next_to_centres(pool, given, count, draws):
    """The photographs next to the centres of as many clusters as there will be labels."""
    known = np.flatnonzero(given >= 0)
    fitted = KMeans(min(len(known) + count, len(pool)), n_init=1, random_state=0).fit(pool)
    distances = np.square(pool - fitted.cluster_centers_[fitted.labels_]).sum(1)
    chosen = []
    for cluster in np.argsort(-np.bincount(fitted.labels_), kind="stable"):
        if cluster not in fitted.labels_[known] and len(chosen) < count:
            members = np.flatnonzero((fitted.labels_ == cluster) & (given < 0))
            chosen.append(int(members[distances[members].argmin()]))
    rest = np.setdiff1d(np.flatnonzero(given < 0), chosen)
    return np.array([*chosen, *draws.permutation(rest)[: count - len(chosen)]], dtype=np.int64)


METHODS = {
    "vitkit": (ours, False),
    "random": (at_random, True),
    "margin": (smallest_margin, True),
    "TypiClust": (typiclust, True),
    "k-means": (next_to_centres, True),
}
"""How labels are chosen, and whether by chance."""


# A session


def session(pool, labels, new, truth, wrong: float, seed: int) -> tuple[dict, list[dict]]:
    """What a session takes until all is labelled, and what it says of itself on the way."""
    draws = np.random.default_rng(seed)
    count = int(labels.max()) + 1
    everything = accuracy(solve(pool, labels), new, truth)
    names = [f"{seed}-{i}" for i in range(len(pool))]
    class_of = dict(zip(names, labels.tolist(), strict=True))
    effort, answers, reached, labels_then = 0, 0, None, None
    shown, shown_wrong = 0, 0
    told = []
    with tempfile.TemporaryDirectory() as folder:
        sat = LabelSession(names, Path(folder))
        sat.see(names, pool)
        while (question := sat.ask("somebody")) is not None:
            if question.how == "screen":
                other = [
                    name for name in question.photographs if class_of[name] != int(question.label)
                ]
                taken_out = [name for name in other if draws.random() >= wrong]
                sat.say("somebody", question.number, "class", others=taken_out)
                effort += 1 + len(taken_out)
                shown += len(question.photographs)
                shown_wrong += len(other)
            else:
                label = class_of[question.photographs[0]]
                if draws.random() < wrong:
                    label = int(draws.integers(count))
                sat.say("somebody", question.number, "class", str(label))
                effort += 1
            answers += 1
            head, numbers = model_of(sat)
            if head is None:
                continue
            if reached is None and answers % 5 == 0:
                found = numbers[head.classes[head.scores(new).argmax(1).numpy()]]
                if (found == truth).mean() >= REACHED * everything:
                    reached, labels_then = effort, len(sat.labels())
            if answers % LOOKED_AT == 0:
                told += look(sat, head, numbers, pool, class_of, names)
        given = sat.labels()
    right = np.mean([int(given[name]) == class_of[name] for name in given])
    return {
        "keystrokes and clicks to 95 % of the accuracy of all labels": reached,
        "labels then": labels_then,
        "keystrokes and clicks until all is labelled": effort,
        "labels": len(given),
        "of which right, %": round(100 * float(right), 1),
        "of a screen of its class, %": round(100 * (1 - shown_wrong / max(shown, 1)), 1),
    }, told


def model_of(sat: LabelSession):
    """The head of a session, and the classes of its numbers."""
    head, labels = sat.head()
    return head, np.array([int(label) for label in labels])


def look(sat: LabelSession, head, numbers, pool, class_of, names) -> list[dict]:
    """What the session says of the rest, and what is true."""
    progress = sat.progress()
    left = [i for i, name in enumerate(names) if name not in sat.answers.labels]
    if progress.estimate is None or len(left) < WORTH_TELLING:
        return []
    found = numbers[head.classes[head.scores(pool[left]).argmax(1).numpy()]]
    true = float(np.mean(found == np.array([class_of[names[i]] for i in left])))
    estimate = progress.estimate
    return [{"true": true, "share": estimate.share, "low": estimate.low, "high": estimate.high}]


def summary(told: list[dict]) -> dict:
    """How often the intervals hold what is true."""
    if not told:
        return {}
    true, share, low, high = (
        np.array([each[key] for each in told]) for key in ("true", "share", "low", "high")
    )
    return {
        "looks": len(told),
        "within the interval of 95 %, %": round(
            100 * float(((low <= true) & (true <= high)).mean()), 1
        ),
        "too high by, points": round(100 * float((share - true).mean()), 1),
        "off by, points": round(100 * float(np.abs(share - true).mean()), 1),
        "width of the interval, points": round(100 * float((high - low).mean()), 1),
    }


def median(values: list) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


if __name__ == "__main__":
    main()
