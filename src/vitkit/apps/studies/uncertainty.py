"""Uncertainty of a study's results: means with standard deviations, and a test of whether the best
and the worst setting differ by more than chance.

Legend: K settings, S seeds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from vitkit.evaluation import Metric

LEVEL = (
    0.05  # significance level: the share of studies of equal settings that may report a difference
)
Runs = Mapping[tuple, Mapping[int, Metric]]
"""Results of every setting, by seed."""


def mean_and_deviation(metrics: Sequence[Metric]) -> tuple[float, float]:
    """The mean of some runs' values, and their sample standard deviation; NaN for one run."""
    values = [metric.value for metric in metrics]
    deviation = math.nan
    if len(values) > 1:
        deviation = statistics.stdev(values)
    return statistics.fmean(values), deviation


def cell_text(metrics: Sequence[Metric]) -> str:
    """Mean and standard deviation of runs, in percent: "41.3 ± 0.6"; "–" without runs."""
    if not metrics:
        return "–"
    scale = metrics[0].unit.scale
    mean, deviation = mean_and_deviation(metrics)
    if math.isnan(deviation):
        return f"{mean * scale:.1f}"
    return f"{mean * scale:.1f} ± {deviation * scale:.1f}"


def best_and_worst(runs: Runs, families: int = 1) -> list[str]:
    """Sentences about whether the best and the worst of all settings differ by more than chance: if the
    settings are equal, at most one study in twenty reports a difference.

    families: number of such tests in one study, each on other images; p is multiplied by it (Bonferroni).
    """
    several = {name: of_seed for name, of_seed in runs.items() if len(of_seed) > 1}
    if not several:
        return ["one run of each kind does not show the effect of chance: give several `seeds`"]

    # The deviation of runs of one setting
    groups = [np.array([m.value for m in of_seed.values()]) for of_seed in several.values()]
    squares = sum(((values - values.mean()) ** 2).sum() for values in groups)
    freedom = sum(len(values) - 1 for values in groups)
    scale = next(iter(next(iter(several.values())).values())).unit.scale
    deviation = math.sqrt(squares / freedom) * scale
    sentences = [f"runs that differ by their seed alone deviate by {deviation:.1f}"]
    if len(several) < 2:
        return sentences

    # The best and the worst setting
    means = np.array([values.mean() for values in groups])
    names = [", ".join(map(str, name)) for name in several]
    best = int(means.argmax())
    worst = int(means.argmin())
    p = min(families * range_test(list(several.values())), 1.0)
    test = "Games-Howell over all settings"
    if have_the_same_seeds(list(several.values())):
        test += ", paired by seed"
    verdict = "no more than chance gives, so this study shows no difference"
    if p < LEVEL:
        verdict = "more than chance gives"
    p_text = f"p = {p:.2g}"
    if p < 0.001:
        p_text = "p < 0.001"
    sentences.append(
        f"the best of {len(several)} settings ({names[best]}) and the worst ({names[worst]}) differ by "
        f"{(means[best] - means[worst]) * scale:.1f}: {verdict} ({p_text}; {test})"
    )
    if min(map(len, groups)) == 2:
        sentences.append(
            "with two seeds only very large differences show: give three `seeds` or more"
        )
    return sentences


def have_the_same_seeds(settings: Sequence[Mapping[int, Metric]]) -> bool:
    """Whether every setting ran with the same seeds, so that they can be compared seed by seed."""
    return all(of_seed.keys() == settings[0].keys() for of_seed in settings)


def range_test(settings: Sequence[Mapping[int, Metric]]) -> float:
    """The p-value of the difference between the best and the worst mean of K settings with two runs
    or more each. It accounts for the number of settings, since the range of more means is larger by
    chance.

    Games and Howell's test, which allows each setting a variance of its own (Games and Howell 1976,
    "Pairwise multiple comparison procedures with unequal N's and/or variances"). If all settings
    have the same seeds, the effect of each seed is removed first: the mean of the seed over the
    settings, which also removes a K-th of the variance. Two settings are compared by the paired
    t-test. `benchmarks/error_rates.py` simulates both.
    """
    from scipy.stats import studentized_range, ttest_rel

    groups = [np.array([m.value for _, m in sorted(of_seed.items())]) for of_seed in settings]
    means = np.array([values.mean() for values in groups])
    best = int(means.argmax())
    worst = int(means.argmin())
    paired = have_the_same_seeds(settings)
    compared = groups
    if paired:
        compared = list(_without_seed_effects(np.stack(groups)))
    if np.allclose(compared[best], means[best]) and np.allclose(compared[worst], means[worst]):
        return float(math.isclose(means[best], means[worst]))  # without variance: equal or not
    if paired and len(groups) == 2:
        return float(ttest_rel(*groups).pvalue)

    # For these two only: `scipy.stats.tukey_hsd` computes every pair, and each takes a while
    two = [compared[best], compared[worst]]
    errors = np.array([values.var(ddof=1) / len(values) for values in two])  # of means, squared
    freedom = errors.sum() ** 2 / sum(errors**2 / [len(values) - 1 for values in two])  # Welch's
    difference = (means[best] - means[worst]) / math.sqrt(errors.mean())
    return float(studentized_range.sf(difference, len(groups), freedom))


def _without_seed_effects(values: np.ndarray) -> np.ndarray:
    """(K, S) -> (K, S): values with the same means of settings but without the common effect of
    each seed, with the variance that they would have if that effect were known."""
    means = values.mean(1, keepdims=True)  # (K, 1)
    seeds = values.mean(0) - values.mean()  # (S,)
    share = 1 - 1 / len(values)
    return means + (values - means - seeds) / math.sqrt(share)
