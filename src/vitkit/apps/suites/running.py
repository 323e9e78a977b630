"""Running a suite: the tasks whose images exist run as the cells of a grid, either as an evaluation
of the frozen model or as fine-tuning by a protocol. Missing tasks are reported, and the grid keeps
the results.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vitkit.apps.suites.images import TaskImages, find_all
from vitkit.apps.suites.measurements import frozen_cells
from vitkit.apps.suites.task import Suite, Task
from vitkit.evaluation import Metric
from vitkit.recipes import Recipe, finetune
from vitkit.recipes.table_4 import bit_crops
from vitkit.system.console.text import some
from vitkit.system.errors import BadSettings
from vitkit.system.machine import Precision
from vitkit.system.processes.ranks import from_rank_0, process_group
from vitkit.system.span import Span
from vitkit.training import Cell, Row, read_rows, run_grid
from vitkit.training.grids.grid import check_shard
from vitkit.weights import Hints

ProtocolName = Literal["features", "paper", "light"]
WAITING = "has not run yet"  # the reason for a task that can run
SIDE = 384  # image size of all tasks in pixels (App. B.1.1)
WARMUP = 5  # the warm-up takes one part in this many of a run, as 500 of 2,500 steps


@dataclass(frozen=True)
class FineTuning:
    """Fine-tuning with the same settings for every task (App. B.1.1): SGD, BiT's crops, images of
    384 x 384 pixels, all images but the test part. If several rates or lengths are given, the best
    combination is chosen for each task on the validation part."""

    rates: tuple[float, ...] = (0.01,)
    """Learning rates."""
    steps: tuple[int, ...] = (2_500,)
    """Lengths of the runs, in steps."""
    batch: int = 512
    """Number of images per step."""

    def __post_init__(self):
        for name in ("rates", "steps"):
            values = getattr(self, name)
            if not values or not all(0 < value < math.inf for value in values):
                raise BadSettings(f"{name} are {values}; give one or more, above 0")
        if self.batch < 1:
            raise BadSettings(f"`batch` is {self.batch}; it is at least 1")

    @property
    def settings(self) -> list[tuple[float, int]]:
        """Every combination of learning rate and length."""
        return [(rate, steps) for rate in self.rates for steps in self.steps]


PAPER = FineTuning()
LIGHT = FineTuning(rates=(0.1, 0.01), steps=(2_500, 10_000))  # VTAB's lightweight sweep
FINE_TUNING = {"paper": PAPER, "light": LIGHT}


@dataclass(frozen=True)
class Outcome:
    """The results of a model on a suite."""

    suite: Suite
    """The suite with all tasks, including those without a result."""
    metrics: dict[str, list[list[Metric]]]
    """For each task its accuracies (one for a fine-tuned model, several for a frozen one), each with one
    value per seed."""
    reasons: dict[str, str]
    """Why a task, or some of its cells, have no result; a sentence by task name."""
    deviations: dict[str, str]
    """How a task's images, or the protocol, differ from the suite's; by task name."""

    @property
    def is_whole(self) -> bool:
        """Whether every task has a result by the suite's rules, so that the mean may carry the
        suite's name."""
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

    features: linear probe, few-shot and nearest neighbours on the frozen model, in seconds. paper:
    the ViT paper's fine-tuning, the same for all tasks. light: VTAB's sweep of two rates and two
    lengths, chosen for each task on its validation images. Or any other FineTuning.

    tasks: names of the tasks to run now; all by default.
    shard: (i, n) runs every n-th task, from the i-th on, so that n processes can share a suite.
    from_hub: read tasks that are missing in `folder` from the Hugging Face hub, if it has them.
    precision: of evaluations without training; training uses that of its recipe, float32.

    Raises VitkitError if no task has images, or if the suite does not support the protocol, and the
    errors of `run_grid`.
    """
    if seeds < 1:
        raise BadSettings(f"`seeds` is {seeds}; it is at least 1")
    check_shard(shard)
    index, count = shard
    if not suite.learns and protocol != "features":
        raise BadSettings(
            f"the suite {suite.name} measures a model as it is, so nothing is fine-tuned; leave out "
            "the protocol"
        )
    hints = hints or Hints()
    wanted = suite.only(tasks).tasks
    with process_group(device):
        # Only tasks that run now are downloaded
        others = [task for task in suite.tasks if task not in wanted]
        found, absent = from_rank_0(lambda: find_all(wanted, folder, run_dir, from_hub))
        more, more_absent = from_rank_0(lambda: find_all(others, folder, run_dir, False))
        found |= more
        absent |= more_absent
        present = [task for task in wanted if task in found]
        if not present:
            raise BadSettings(_no_images_message(wanted, folder, absent))
        own = {task: found[task] for task in present[index::count]}
        if own and protocol == "features":
            run_grid(frozen_cells(model, own, hints, precision), run_dir, device)
        elif own:
            settings = FINE_TUNING[protocol] if isinstance(protocol, str) else protocol
            _fine_tune(settings, model, own, hints, range(seeds), run_dir, device)
        rows = from_rank_0(lambda: read_rows(run_dir))
    outcome = _outcome(suite, rows, absent, _deviations(suite, found, protocol, hints))
    for name in outcome.metrics:
        if name in absent:  # it has results, but its images were removed since
            outcome.deviations[name] = "its images are not here any more, so nothing checks them"
    return outcome


def _no_images_message(tasks: Sequence[Task], folder: str, absent: dict[str, str]) -> str:
    """The message for a folder that has no images of these tasks."""
    names = some([task.name for task in tasks], 3)
    return f"{folder} has the images of no task ({names}); {tasks[0].name}: {absent[tasks[0].name]}"


# Fine-tuning


def _fine_tune(
    protocol: FineTuning,
    model: str,
    tasks: dict[Task, TaskImages],
    hints: Hints,
    seeds: Sequence[int],
    run_dir: Path,
    device: str,
) -> None:
    """Choose a setting for each task, if there are several; then run the task with it."""
    chosen = dict.fromkeys((task.name for task in tasks), protocol.settings[0])
    trials = _selection_cells(protocol, model, tasks, hints)
    if trials:
        chosen = _best(run_grid(trials, run_dir, device))
    run_grid(_final_cells(protocol, model, tasks, hints, chosen, seeds), run_dir, device)


def _best(rows: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """The setting with the best metric, by task; of equal ones the first."""
    best: dict[str, Row] = {}
    for row in rows:
        if not row.primary:
            continue
        task = str(row.settings["task"])
        if task not in best or row.measured.beats(best[task].measured):
            best[task] = row
    found = {}
    for task, row in best.items():
        found[task] = (float(row.settings["lr"]), int(row.settings["steps"]))
    return found


def _selection_cells(
    protocol: FineTuning, model: str, tasks: dict[Task, TaskImages], hints: Hints
) -> list[Cell]:
    """One run per setting and task, measured on the validation part; none for a single setting."""
    if len(protocol.settings) == 1:
        return []
    cells = []
    for task, images in tasks.items():
        for rate, steps in protocol.settings:
            recipe = _recipe(protocol, model, task, images, hints, rate, steps)
            cells.append(
                Cell(
                    f"select/{task.name}/lr-{rate:g}-steps-{steps}",
                    replace(recipe, data=replace(recipe.data, parts="select")),
                    {"task": task.name, "lr": rate, "steps": steps},
                    f"{task.heading}, learning rate {rate:g}, {steps:,} steps, on held-out images",
                )
            )
    return cells


def _final_cells(
    protocol: FineTuning,
    model: str,
    tasks: dict[Task, TaskImages],
    hints: Hints,
    chosen: dict[str, tuple[float, int]],
    seeds: Sequence[int],
) -> list[Cell]:
    """One run per seed for each task with a chosen setting, trained on all but the test part."""
    cells = []
    for task, images in tasks.items():
        if task.name not in chosen:
            continue
        rate, steps = chosen[task.name]
        recipe = _recipe(protocol, model, task, images, hints, rate, steps)
        for seed in seeds:
            cells.append(
                Cell(
                    f"{task.name}/seed-{seed}",
                    replace(recipe, seed=seed),
                    {"task": task.name, "lr": rate, "steps": steps, "seed": seed},
                    f"{task.heading}, seed {seed}",
                )
            )
    return cells


def _recipe(
    protocol: FineTuning,
    model: str,
    task: Task,
    images: TaskImages,
    hints: Hints,
    rate: float,
    steps: int,
) -> Recipe:
    """The fine-tuning run of a task with one setting."""
    recipe = finetune(model, images.where, "vtab", hints, task.columns, typed=False)

    # BiT's crops, without operations that change a task's classes
    augmentation = bit_crops(recipe.model.image, task.flip, task.crop)
    warmup = min(recipe.optim.warmup.n, steps // WARMUP)
    return replace(
        recipe,
        name=f"suite-{task.name}",
        data=replace(recipe.data, augmentation=augmentation),
        optim=replace(recipe.optim, lr=rate, warmup=Span(warmup)),
        length=Span(steps),
        batch=protocol.batch,
        micro_batch=min(protocol.batch, recipe.micro_batch),
        evaluate_every=Span(steps),
        save_every=Span(max(steps // 10, 1)),
        keep=1,
    )


# The results


def _deviations(
    suite: Suite, found: dict[Task, TaskImages], protocol: ProtocolName | FineTuning, hints: Hints
) -> dict[str, str]:
    """How the images of tasks, or the protocol, differ from the suite's; by task name, "" for all."""
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
    """The results of the finished cells, by task, in the suite's order."""
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
    """The accuracies of a task's final cells, and an error message if one of them failed."""
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
            cells.setdefault(row.cell, []).append(row.measured)
    return cells, failed
