"""What a study asks for and what it has reached: the values of its cells, the table of them, and how
much of it is noise.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from vitkit.evaluation import Metric
from vitkit.studies.budget import Plan
from vitkit.studies.rows import Row, Setting
from vitkit.training import Recipe


@dataclass(frozen=True)
class Ask:
    """What somebody asks of a study."""

    data: str = ""
    """The images, written as `data.source` is."""
    recipe: Recipe | None = None
    """The run that is varied."""
    fewshot: str = ""
    """Other images, on which 5-shot accuracy is measured instead of the runs' own."""
    pretrain: tuple[str, ...] = ()
    """Data sets to pre-train on, beside `data`."""
    targets: tuple[str, ...] = ()
    """Data sets to transfer to."""
    model: str = ""
    """Published weights, for studies that begin with some."""
    models: tuple[str, ...] = ()
    """Names of models, for studies of their cost."""
    sizes: tuple[int, ...] = ()
    """Sides of images in pixels."""
    memory: float = 0.25
    """GiB that a batch may take on a CPU, for studies of cost."""
    seeds: int = 3
    """Runs of each kind."""
    regularise: bool = False
    """Whether weight decay, dropout and label smoothing are chosen for each small set (Figure 3)."""


class Table(NamedTuple):
    """A table in the paper's form."""

    title: str
    """What it shows."""
    columns: tuple[str, ...]
    """Their heads."""
    rows: list[tuple[str, ...]]
    """The cells."""
    notes: list[str]
    """What else the numbers say, a sentence each."""

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [f"**{self.title}**", "", f"| {' | '.join(self.columns)} |"]
        lines.append("|---" * len(self.columns) + "|")
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


class Results(NamedTuple):
    """What a study has reached so far."""

    ask: Ask
    """What was asked."""
    plan: Plan
    """What the budget came to."""
    rows: list[Row]
    """What every cell measured, at its last evaluation."""
    curves: list[Row]
    """The same at every evaluation."""

    def values(self, **settings: Setting) -> list[Metric]:
        """What the finished cells with these settings are compared by."""
        return [row.metric for row in _matching(self.rows, settings)]

    def curve(self, **settings: Setting) -> dict[int, list[Metric]]:
        """The same at every evaluation, by its step."""
        by_step: dict[int, list[Metric]] = {}
        for row in _matching(self.curves, settings):
            by_step.setdefault(row.step, []).append(row.metric)
        return dict(sorted(by_step.items()))

    def group(self, *names: str) -> dict[tuple, list[Metric]]:
        """The values of every combination of some settings, in the order of the cells."""
        groups: dict[tuple, list[Metric]] = {}
        for row in self.rows:
            if row.primary and all(name in row.settings for name in names):
                key = tuple(row.settings[name] for name in names)
                groups.setdefault(key, []).append(row.metric)
        return groups

    def failures(self) -> list[str]:
        """A sentence for each cell that failed."""
        return [f"{row.cell} failed: {row.error}" for row in self.rows if row.error is not None]


def _matching(rows: Sequence[Row], settings: dict[str, Setting]) -> list[Row]:
    """The rows that cells are compared by, of those with these settings."""
    return [row for row in rows if row.primary and settings.items() <= row.settings.items()]


def mean_and_deviation(metrics: Sequence[Metric]) -> tuple[float, float]:
    """The mean of some runs' values, and their sample standard deviation; NaN for one run."""
    values = [metric.value for metric in metrics]
    deviation = math.nan
    if len(values) > 1:
        deviation = statistics.stdev(values)
    return statistics.fmean(values), deviation


def cell_text(metrics: Sequence[Metric]) -> str:
    """The mean and the standard deviation of some runs: "41.3 ± 0.6", in percent of a share; "–" if
    there are none."""
    if not metrics:
        return "–"
    scale = metrics[0].unit.scale
    mean, deviation = mean_and_deviation(metrics)
    if math.isnan(deviation):
        return f"{mean * scale:.1f}"
    return f"{mean * scale:.1f} ± {deviation * scale:.1f}"


@cache  # a tenth of a second
def _range_of_chance(groups: int, freedom: int) -> float:
    """The range of so many means by chance, in standard errors, that 95 % of studies stay below."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(0.95, groups, freedom))


def noise(groups: Sequence[Sequence[Metric]]) -> list[str]:
    """The least difference of two means that is more than chance, by the deviation within all groups
    together: a sentence for two that were chosen beforehand (Student's t), and one for the best and
    the worst of all, which chance alone puts farther apart (Tukey's studentized range)."""
    from scipy.stats import t

    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    if not freedom:
        return ["one run of each kind says nothing about chance: give several --seeds"]
    squares = sum(
        statistics.variance([m.value for m in group]) * (len(group) - 1) for group in several
    )
    deviation = math.sqrt(squares / freedom)
    runs = min(len(group) for group in several)
    least = t.ppf(0.975, freedom) * deviation * math.sqrt(2 / runs)
    scale = several[0][0].unit.scale
    sentence = (
        f"runs that differ by their seed alone deviate by {deviation * scale:.1f}; so two means of "
        f"{runs} runs differ by more than chance from {least * scale:.1f} on (95 %, for one comparison)"
    )
    if len(several) < 2:
        return [sentence]

    # The best and the worst of all
    means = [statistics.fmean(m.value for m in group) for group in several]
    spread = max(means) - min(means)
    by_chance = _range_of_chance(len(several), freedom) * deviation / math.sqrt(runs)
    verdict = "more"
    if spread <= by_chance:
        verdict = "no more, so this study shows no difference"
    of_all = (
        f"the best and the worst of {len(several)} differ by {spread * scale:.1f}, and by chance alone "
        f"they differ by up to {by_chance * scale:.1f}: {verdict}"
    )
    return [sentence, of_all]
