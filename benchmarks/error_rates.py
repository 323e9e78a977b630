"""How often vitkit's sentences are wrong where the truth is known, by simulation: no data are needed.

`studies`: settings that do not differ, and how often their best and worst are said to; and how often a
setting that is better by four deviations of a run is found. `laws`: how often the interval of a scaling
law, at 3 and at 10 times the largest x, holds the true error. `exports`: what is said of files that lose
accuracy, by the number of images.

    python benchmarks/error_rates.py --output benchmarks/results/error-rates.json
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import record
from scipy.stats import studentized_range

from vitkit.apps.studies.laws import fit
from vitkit.apps.studies.uncertainty import LEVEL, range_test
from vitkit.evaluation import SHARE, Metric
from vitkit.exporting import Agreement
from vitkit.exporting.bounds import keeps_accuracy, wrong

PACKAGES = ("numpy", "scipy", "vitkit")
PARTS = ("studies", "laws", "exports")


def main(argv: list[str] | None = None) -> dict:
    parser = record.parser(__doc__)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--draws", type=int, default=2000, help="of each case; a fifth for laws")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    about = record.about(__doc__.partition("\n")[0], PACKAGES)

    results = {}
    of_part = {"studies": studies, "laws": laws, "exports": exports}
    draws = {"studies": options.draws, "laws": options.draws // 5, "exports": options.draws}
    for part in options.parts:
        results[part] = []
        for row in of_part[part](draws[part]):
            results[part].append(row)
            print(part, *(f"{name} {value}" for name, value in row.items()), flush=True)
    content = about | {"results": results}
    record.write(content, options.output)
    return content


# Studies

SETTINGS = (2, 4, 9, 24)
SEEDS = (2, 3, 5)
BETTER = 4.0  # deviations of a run, by which one setting is better than all others


def studies(draws: int) -> Iterator[dict]:
    """For each number of settings and of seeds: the share of studies in which the best and the worst are
    called different, paired by seed and not. "unequal": half of the settings deviate three times as
    much; "seeds": what a seed does to all settings deviates twice as much as a run."""
    for settings, seeds in product(SETTINGS, SEEDS):
        for name in ("equal", "unequal", "seeds", "better", "better and seeds"):
            random = np.random.default_rng(0)
            values = random.normal(size=(draws, settings, seeds))
            if name == "unequal":
                values[:, : settings // 2] *= 3
            if "seeds" in name:
                values += 2 * random.normal(size=(draws, 1, seeds))
            if "better" in name:
                values[:, 0] += BETTER
            row = {"settings": settings, "seeds": seeds, "case": name}
            for paired in (True, False):
                says = said_to_differ(values, paired)
                check_with_range_test(values[:2], paired, says)
                row["paired" if paired else "unpaired"] = float(says.mean())
            yield row


def said_to_differ(values: np.ndarray, paired: bool) -> np.ndarray:
    """(D, K, S) -> (D,): whether `range_test` is below LEVEL for each of D studies. It takes a tenth of a
    second for each, as scipy integrates for all pairs of settings; here critical values are
    interpolated."""
    draws, settings, seeds = values.shape
    rows = np.arange(draws)
    means = values.mean(2)
    best = means.argmax(1)
    worst = means.argmin(1)
    gap = means[rows, best] - means[rows, worst]
    if paired and settings == 2:
        difference = values[rows, best] - values[rows, worst]
        error = difference.std(1, ddof=1) / np.sqrt(seeds)
        return gap / error * np.sqrt(2) > critical(2, np.full(draws, seeds - 1.0))
    share = 1.0
    if paired:
        values = values - values.mean(1, keepdims=True)
        share = 1 - 1 / settings
    variances = values.var(2, ddof=1) / share / seeds
    a = variances[rows, best]
    b = variances[rows, worst]
    freedom = (a + b) ** 2 / ((a**2 + b**2) / (seeds - 1))
    return gap / np.sqrt((a + b) / 2) > critical(settings, freedom)


def critical(settings: int, freedom: np.ndarray) -> np.ndarray:
    """The studentized range that 95 % of studies stay below."""
    grid, values = critical_values(settings)
    return np.exp(np.interp(np.log(freedom), grid, values))


@cache
def critical_values(settings: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for some degrees of freedom; both as logarithms."""
    grid = np.linspace(0, np.log(10), 40)
    values = [studentized_range.ppf(1 - LEVEL, settings, np.exp(each)) for each in grid]
    return grid, np.log(values)


def check_with_range_test(values: np.ndarray, paired: bool, says: np.ndarray) -> None:
    """Raises AssertionError if vitkit's own test says otherwise."""
    for study, expected in zip(values, says, strict=False):
        settings = []
        for number, of_setting in enumerate(study):
            seeds = range(len(of_setting))
            if not paired:
                seeds = [(number, seed) for seed in seeds]
            metrics = [Metric("top1", value, SHARE) for value in of_setting.tolist()]
            settings.append(dict(zip(seeds, metrics, strict=True)))
        assert (range_test(settings) < LEVEL) == expected


# Scaling laws

XS = {
    4: (1_500, 5_000, 15_000, 50_000),
    6: (1e3, 3e3, 1e4, 3e4, 1e5, 3e5),
}
FAR = (3, 10)
LARGEST = 0.8  # the error above the floor at the least x
MIDDLE = 0.3  # and in the middle, if that is less


def laws(draws: int) -> Iterator[dict]:
    """For each law and noise: the share of intervals that hold the truth, and their middle width.
    "equal": all runs deviate alike; "falling": those of the least x twice as much as those of the
    most; "seeds": half of the variance is what a seed does to all x; "another law": each mean lies
    beside the law by as much as a run does beside its mean."""
    for points, seeds, floor in product(XS, (2, 3, 5), (0.0, 0.05, 0.2)):
        for power, deviation in product((0.15, 0.4, 0.8), (0.005, 0.02)):
            yield law_row(draws, points, seeds, (floor, power, deviation), "equal")
    for case in ("falling", "seeds", "another law"):
        for points, floor in product(XS, (0.0, 0.05)):
            yield law_row(draws, points, 3, (floor, 0.4, 0.01), case)


def law_row(draws: int, points: int, seeds: int, truth: tuple, case: str) -> dict:
    """Coverage and width for one law."""
    floor, power, deviation = truth
    xs = np.array(XS[points])
    scale = min(MIDDLE, LARGEST * (xs[0] / 1e4) ** power)

    def error(x: np.ndarray) -> np.ndarray:
        return floor + scale * (x / 1e4) ** -power

    random = np.random.default_rng(0)
    held = np.zeros((draws, len(FAR)))
    widths = np.zeros((draws, len(FAR)))
    for draw in range(draws):
        noise = random.normal(size=(points, seeds))
        if case == "falling":
            noise *= np.geomspace(np.sqrt(2), 1 / np.sqrt(2), points)[:, None]
        elif case == "seeds":
            noise = (noise + random.normal(size=seeds)) / np.sqrt(2)
        elif case == "another law":
            noise += random.normal(size=(points, 1))
        runs = error(xs)[:, None] + deviation * noise
        fitted = fit(dict(zip(xs.tolist(), runs, strict=True)))
        for i, far in enumerate(FAR):
            low, high = fitted.interval(far * xs[-1])
            held[draw, i] = low <= error(far * xs[-1]) <= high
            widths[draw, i] = high - low
    row = {"points": points, "seeds": seeds, "floor": floor, "power": power}
    row |= {"deviation": deviation, "case": case}
    for i, far in enumerate(FAR):
        row[f"held at {far}x"] = float(held[:, i].mean())
        row[f"width at {far}x"] = round(float(np.median(widths[:, i])), 4)
    return row


# Exports

IMAGES = (50, 100, 500, 2000)
TURNED = {  # what share of the images a file loses, and wins
    "equal, no answer differs": (0.0, 0.0),
    "equal, 2 % differ": (0.01, 0.01),
    "equal, 4 % differ": (0.02, 0.02),
    "loses 1 point": (0.025, 0.015),
    "loses 3 points": (0.035, 0.005),
    "loses 3 points, wins none": (0.03, 0.0),
}
ACCURACY = 0.7


def exports(draws: int) -> Iterator[dict]:
    """For each file: how often it is refused for its accuracy as int8, how often it is said to keep its
    accuracy, and how often the interval holds the true loss."""
    for (name, (lost, won)), images in product(TURNED.items(), IMAGES):
        random = np.random.default_rng(0)
        counts = random.multinomial(images, (lost, won, 1 - lost - won), size=draws)
        refused = 0
        keeps = 0
        held = 0
        for of_lost, of_won, _ in counts.tolist():
            agreement = Agreement("", images, images, 1.0, 0.0, 0.0, 1.0)
            agreement = replace(agreement, labelled=images, lost=of_lost, won=of_won)
            accuracy = ACCURACY - (of_lost - of_won) / images
            agreement = replace(agreement, accuracy=accuracy, models_accuracy=ACCURACY)
            refused += wrong(agreement, "int8", "softmax", 0.9) != ""
            keeps += keeps_accuracy(agreement)
            low, high = agreement.interval_of_loss
            held += low <= lost - won <= high
        row = {"file": name, "images": images, "refused": refused / draws}
        yield row | {"said to keep its accuracy": keeps / draws, "interval holds": held / draws}


if __name__ == "__main__":
    main()
