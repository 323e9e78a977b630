"""One runner for all suites: what is there runs, what is not is said, and a grid keeps the results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitkit.evaluation import Metric
from vitkit.studies import Row, check_shard, read_rows, run_grid
from vitkit.suites.protocol import (
    FINE_TUNING,
    SIDE,
    FineTuning,
    ProtocolName,
    final_cells,
    frozen_cells,
    selection_cells,
)
from vitkit.suites.published import find_published, names_of
from vitkit.suites.task import Images, Suite, Task, find
from vitkit.system.machine import Precision
from vitkit.system.processes.ranks import from_rank_0, process_group
from vitkit.weights import Hints

WAITING = "has not run yet"  # the reason of a task that can run


@dataclass(frozen=True)
class Outcome:
    """What a model reached on a suite."""

    suite: Suite
    """All tasks, also those without a result."""
    metrics: dict[str, list[list[Metric]]]
    """By task, each accuracy (one of a fine-tuned model, several of a frozen one), of every seed."""
    reasons: dict[str, str]
    """Why a task has no result, or not all of its cells have, in a sentence."""
    deviations: dict[str, str]
    """In what a task's images, or the protocol, are not the suite's."""

    @property
    def is_whole(self) -> bool:
        """Whether every task has a result, on the images and by the protocol that the suite asks
        for: only then the mean has the suite's name."""
        return not self.deviations and all(task.name in self.metrics for task in self.suite.tasks)


def run_suite(
    suite: Suite,
    model: str,
    folder: str,
    run_dir: Path,
    protocol: ProtocolName | FineTuning = "features",
    tasks: Sequence[str] = (),
    seeds: int = 1,
    hints: Hints | None = None,
    device: str = "auto",
    shard: tuple[int, int] = (0, 1),
    from_hub: bool = False,
    precision: Precision = "float32",
) -> Outcome:
    """Run a protocol on every task whose images are below `folder`; finished ones are skipped.

    features: linear probe, few-shot and neighbours on the frozen model, in seconds. paper: the ViT
    paper's fine-tuning, the same for all tasks. light: VTAB's sweep of two rates and two lengths,
    chosen for each task on its validation images. Or a FineTuning of one's own.

    tasks: the names of some, which run now; all by default.
    shard: (i, n) runs every n-th task, from the i-th on, so that n processes can share a suite.

    from_hub: tasks that are not in `folder` are read from the Hugging Face hub, if they are there.
    precision: of measurements without training; runs have that of their recipe, float32.

    Raises ValueError if no task has images, for a protocol that the suite has no meaning for, and
    what `run_grid` raises.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it is at least 1")
    check_shard(shard)
    index, count = shard
    if not suite.learns and protocol != "features":
        raise ValueError(
            f"the suite {suite.name} measures a model as it is, so nothing is fine-tuned; leave out "
            "the protocol"
        )
    hints = hints or Hints()
    wanted = suite.only(tasks).tasks
    with process_group(device):
        # Only the tasks that run now are downloaded
        others = [task for task in suite.tasks if task not in wanted]
        found, absent = from_rank_0(lambda: _find_all(wanted, folder, run_dir, from_hub))
        more, more_absent = from_rank_0(lambda: _find_all(others, folder, run_dir, False))
        found |= more
        absent |= more_absent
        present = [task for task in wanted if task in found]
        if not present:
            raise ValueError(_none_of(wanted, folder, absent))
        own = {task: found[task] for task in present[index::count]}
        if own and protocol == "features":
            run_grid(frozen_cells(model, own, hints, precision), run_dir, device)
        elif own:
            settings = protocol
            if not isinstance(protocol, FineTuning):
                settings = FINE_TUNING[protocol]
            _fine_tune(settings, model, own, hints, range(seeds), run_dir, device)
        rows = from_rank_0(lambda: read_rows(run_dir))
    outcome = _outcome(suite, rows, absent, _deviations(suite, found, protocol, hints))
    for name in outcome.metrics:
        if name in absent:  # it ran before, and its images were taken away
            outcome.deviations[name] = "its images are not here any more, so nothing checks them"
    return outcome


def _find_all(
    tasks: Sequence[Task], folder: str, run_dir: Path, from_hub: bool
) -> tuple[dict[Task, Images], dict[str, str]]:
    """The tasks whose images are there; and of the others, by name, why they cannot run."""
    found = {}
    absent = {}
    for task in tasks:
        try:
            if task.named is None:
                images = find(task, folder, run_dir, from_hub)
            else:
                images = find_published(task, folder)
        except ValueError as error:
            absent[task.name] = str(error)
            continue
        if images is None:
            absent[task.name] = _absence(task, folder, from_hub)
        else:
            found[task] = images
    return found, absent


def _absence(task: Task, folder: str, from_hub: bool) -> str:
    """What is missing of a task, and where to get it."""
    if task.named is not None:
        return f"not in {folder} (as {names_of(task)}); get it: {task.source}"
    text = f"not in {folder}; its images: {task.source} ({task.rule})"
    on_hub = False
    for original in task.originals:
        if original.is_of_the_hub:
            on_hub = True
        else:
            text += f"; or {original.data} there, with a column {original.column}"
    if on_hub and not from_hub:
        text += "; or --from-hub, which downloads them"
    if not on_hub and from_hub:
        text += "; the hub has no usable copy"
    return text


def _none_of(tasks: Sequence[Task], folder: str, absent: dict[str, str]) -> str:
    """The sentence about a folder with the images of none of these tasks."""
    names = ", ".join(task.name for task in tasks[:3])
    if len(tasks) > 3:
        names += ", ..."
    return f"{folder} has the images of no task ({names}); {tasks[0].name}: {absent[tasks[0].name]}"


def _fine_tune(
    protocol: FineTuning,
    model: str,
    tasks: dict[Task, Images],
    hints: Hints,
    seeds: Sequence[int],
    run_dir: Path,
    device: str,
) -> None:
    """Choose a setting for each task, if there are several, then run it."""
    chosen = dict.fromkeys((task.name for task in tasks), protocol.settings[0])
    trials = selection_cells(protocol, model, tasks, hints)
    if trials:
        chosen = _best(run_grid(trials, run_dir, device))
    run_grid(final_cells(protocol, model, tasks, hints, chosen, seeds), run_dir, device)


def _best(rows: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """The setting whose metric is best, by task; of equal ones the first."""
    best: dict[str, Row] = {}
    for row in rows:
        if not row.primary:
            continue
        task = row.settings["task"]
        if task not in best or row.metric.beats(best[task].metric):
            best[task] = row
    return {task: (row.settings["lr"], row.settings["steps"]) for task, row in best.items()}


def _deviations(
    suite: Suite, found: dict[Task, Images], protocol: ProtocolName | FineTuning, hints: Hints
) -> dict[str, str]:
    """In what the images of tasks, or the protocol, are not the suite's; by task, "" for all."""
    deviations = {}
    for task, images in found.items():
        texts = images.deviations(task)
        if texts:
            deviations[task.name] = ", ".join(texts)
    if suite.fine_tuned and protocol == "features":
        deviations["protocol"] = f"{suite.name} is measured by fine-tuning, not on frozen features"
    if isinstance(protocol, FineTuning) and protocol not in FINE_TUNING.values():
        deviations["settings"] = "rates, steps or batch are not the protocol's"
    if protocol != "features" and hints.image and set(hints.image) != {SIDE}:
        height, width = hints.image
        deviations["image"] = f"images of {height} x {width} instead of {SIDE} x {SIDE}"
    return deviations


def _outcome(
    suite: Suite, rows: Sequence[Row], absent: dict[str, str], deviations: dict[str, str]
) -> Outcome:
    """What the finished cells reached, by task, in the suite's order."""
    metrics = {}
    reasons = {}
    for task in suite.tasks:
        cells, failed = _of_task(task, rows)
        if cells:
            metrics[task.name] = [list(same) for same in zip(*cells.values(), strict=True)]
        if failed:
            reasons[task.name] = failed
        elif not cells:
            reasons[task.name] = absent.get(task.name, WAITING)
    return Outcome(suite, metrics, reasons, deviations)


def _of_task(task: Task, rows: Sequence[Row]) -> tuple[dict[str, list[Metric]], str]:
    """The accuracies of a task's final cells, and why one of its cells failed, if one did."""
    cells: dict[str, list[Metric]] = {}
    failed = ""
    for row in rows:
        if row.settings.get("task") != task.name:
            continue
        is_trial = row.cell.startswith("select/")
        is_fine_tuned = "lr" in row.settings
        if row.error is not None:
            failed = f"{row.cell} failed: {row.error}"
        elif not is_trial and (row.primary or not is_fine_tuned):
            cells.setdefault(row.cell, []).append(row.metric)
    return cells, failed
