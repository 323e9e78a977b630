"""The same images, corrupted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table

from vitkit.data import Source, default_workers
from vitkit.evaluation import (
    COMMON,
    MEMORY,
    SEVERITIES,
    Answers,
    Metric,
    Robustness,
    check_can_corrupt,
    corrupt,
    prepare_once,
    robustness,
)
from vitkit.system.console.progress import bar, silent
from vitkit.system.processes.ranks import on_rank_0, world
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.verbs.evaluation.evaluate import Evaluate


MEAN_ERROR = {"mce": "mCE"}  # what people call it, if it is over all of ImageNet-C's corruptions
Ask = Callable[[Classifier, Source, str], "Answers"]
"""Runs a model on images, under a progress bar with a title."""


def check(settings: "Evaluate", classifier: Classifier) -> None:
    """Raises ValueError, before anything is measured, for what corruptions cannot be used with."""
    if settings.against or settings.calibrate or settings.real:
        raise ValueError(
            "--corruptions measures one model; leave out --against, --calibrate and --real"
        )
    check_can_corrupt(classifier.preprocessing)


def measure(
    settings: "Evaluate", classifier: Classifier, source: Source, clean: Metric, ask: Ask
) -> Robustness:
    """Measure the corruptions that a command names, at every severity."""
    names = settings.corruptions
    if "common" in names:
        names = (*COMMON, *names)
    names = tuple(name for name in dict.fromkeys(names) if name != "common")

    # One decode for all passes, if the images fit into memory
    workers = settings.workers
    if workers < 0:
        workers = default_workers(source)
    shown = bar("decoding") if on_rank_0() else silent
    limit = MEMORY // world().world_size
    kept = prepare_once(source, classifier.preprocessing, limit, workers, shown)

    def corrupted(corruption: str, severity: int) -> Answers:
        images, rest = corrupt(kept, classifier.preprocessing, corruption, severity)
        title = f"{corruption} {severity}/{len(SEVERITIES)} ({names.index(corruption) + 1} of {len(names)})"
        return ask(replace(classifier, preprocessing=rest), images, title)

    return robustness(clean, names, corrupted)


def robustness_tables(found: Robustness) -> Iterator[str | Table]:
    """A row for each corruption, a column for each severity: top1 in percent. On ImageNet-C's files a
    column has the errors in proportion to AlexNet's too."""
    severities = [str(k + 1) for k in range(len(found.by_severity))]
    header = ["top1 (%) at severity", *severities]
    if found.errors:
        header.append("CE (%)")
    table = Table(*header)
    mean_error, *errors = found.errors or [None] * (1 + len(found.cells))
    for (name, row), error in zip(found.cells.items(), errors, strict=True):
        table.add_row(name.replace("_", " "), *_percent(row, error))
    table.add_section()
    table.add_row(f"mean of {len(found.cells)}", *_percent(found.by_severity, mean_error))
    yield table

    # The means with their intervals
    sentences = [f"corrupted: {found.mean.text()}"]
    if found.clean is not None:
        sentences.insert(0, f"not corrupted: {found.clean.text()}")
    if mean_error is not None:
        sentences.append(f"{MEAN_ERROR.get(mean_error.name, 'mean CE')}: {mean_error.text()}")
    yield "; ".join(sentences)


def _percent(row: Sequence[Metric], error: Metric | None) -> list[str]:
    """The cells of a row, in percent."""
    metrics = list(row)
    if error is not None:
        metrics.append(error)
    return [f"{100 * metric.value:.1f}" for metric in metrics]
