"""Scaling laws of the studies of data and compute.

The settings that group the runs of such a study begin with the kind of model and end with the
number of images or exaFLOPs.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes

from vitkit.apps.studies.drawing import law, line
from vitkit.apps.studies.laws import Fit, answer, fit, law_text
from vitkit.apps.studies.uncertainty import Runs, best_and_worst
from vitkit.evaluation import Metric

Points = dict[str, dict[float, list[Metric]]]
"""Metrics of the runs of each kind of model, by number of images or exaFLOPs."""


def drawn(on_each: dict[str, Runs]) -> dict[str, Runs]:
    """The runs of each panel of the figure, by its title: the average over the targets, if there
    are several, and the first target, which corresponds to the paper's ImageNet."""
    return dict(list(on_each.items())[:2])


def draw_runs(axes: Axes, runs: Runs, kinds: Sequence[str], joined: bool) -> None:
    """Draw the runs of each kind of model with its law; joined: connect them by lines."""
    points = _points(runs)
    fitted = _fits(runs)
    for number, kind in enumerate(kinds):
        line(axes, points.get(kind, {}), kind, number, joined)
        law(axes, fitted.get(kind), number)


def metrics_of(runs: Runs) -> dict[tuple, list[Metric]]:
    """The values for each combination of settings, in the order of their seeds."""
    return {setting: list(by_seed.values()) for setting, by_seed in runs.items()}


def notes_about(on_each: dict[str, Runs], settings: dict[str, Runs]) -> list[str]:
    """Sentences about whether chance explains the differences between the runs, and about the drawn laws.

    settings: the runs on each target, by the settings that a sentence names.
    """
    notes = []
    for title, runs in on_each.items():
        sentences = best_and_worst(settings[title], families=len(on_each))
        if title in drawn(on_each):
            sentences += [law_text(kind, fitted) for kind, fitted in _fits(runs).items()]
        notes += _of_a_target(title, sentences)
    return notes


def answers(on_each: dict[str, Runs], kinds: Sequence[str], x: float, unit: str) -> list[str]:
    """The predicted accuracy of these kinds of models with `x` images or exaFLOPs, as sentences."""
    sentences = []
    for title, runs in drawn(on_each).items():
        fitted = _fits(runs)
        for kind in kinds:
            sentences += _of_a_target(title, answer(kind, fitted.get(kind), x, unit))
    return sentences


def _of_a_target(title: str, sentences: Sequence[str]) -> list[str]:
    """The sentences with the name of the target before each, if the study has targets."""
    if not title:
        return list(sentences)
    return [f"{title}: {sentence}" for sentence in sentences]


def _points(runs: Runs) -> Points:
    """The metrics of the runs by kind of model, their first setting, and by x, their last setting."""
    points: Points = {}
    for setting, by_seed in runs.items():
        of_kind = points.setdefault(setting[0], {})
        of_kind.setdefault(setting[-1], []).extend(by_seed.values())
    return points


def _fits(runs: Runs) -> dict[str, Fit | None]:
    """The law of each kind of model: its error against images or exaFLOPs."""
    fitted = {}
    for kind, of_kind in _points(runs).items():
        errors = {x: [1 - metric.value for metric in metrics] for x, metrics in of_kind.items()}
        fitted[kind] = fit(errors)
    return fitted
