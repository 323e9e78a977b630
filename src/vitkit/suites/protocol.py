"""The protocols of a suite: how a model is adapted to each task, as the cells of a grid."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from vitkit.recipes import bit_crops, finetune
from vitkit.studies import Cell
from vitkit.suites.frozen import Frozen
from vitkit.suites.published import AsPublished
from vitkit.suites.task import Images, Task
from vitkit.system.machine import Precision
from vitkit.system.processes.ranks import on_rank_0
from vitkit.system.span import Span
from vitkit.training import Recipe
from vitkit.weights import Hints, load_as

ProtocolName = Literal["features", "paper", "light"]
SIDE = 384  # pixels of the images of all tasks (App. B.1.1)
WARMUP = 5  # the share of a run that shorter runs warm up in is one fifth, as 500 of 2,500 steps


@dataclass(frozen=True)
class FineTuning:
    """Fine-tuning with the same settings for every task (App. B.1.1): SGD, BiT's crops, squares of
    384 pixels, all images but the test part. Several rates or lengths are chosen from on the
    validation part, for each task."""

    rates: tuple[float, ...] = (0.01,)
    """Learning rates."""
    steps: tuple[int, ...] = (2_500,)
    """Lengths of a run."""
    batch: int = 512
    """Images of a step."""

    def __post_init__(self):
        for name in ("rates", "steps"):
            values = getattr(self, name)
            if not values or min(values) <= 0:
                raise ValueError(f"{name} are {values}; give one or more, above 0")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}; it is at least 1")

    @property
    def settings(self) -> list[tuple[float, int]]:
        """Every rate with every length."""
        return [(rate, steps) for rate in self.rates for steps in self.steps]


PAPER = FineTuning()
LIGHT = FineTuning(rates=(0.1, 0.01), steps=(2_500, 10_000))  # VTAB's lightweight sweep
FINE_TUNING = {"paper": PAPER, "light": LIGHT}


def frozen_cells(
    model: str, tasks: dict[Task, Images], hints: Hints, precision: Precision
) -> list[Cell]:
    """A measurement of the model as it is on each task: of its answers to a named data set, of its
    features on another. Raises ValueError for a model that cannot be read."""
    weights = weights_digest(model, hints)
    cells = []
    for task, images in tasks.items():
        if task.named is None:
            measurement = Frozen(
                model,
                weights,
                images.where,
                images.digest,
                task.columns,
                hints,
                precision=precision,
            )
        else:
            measurement = AsPublished(
                model,
                weights,
                images.where,
                images.digest,
                task.named,
                task.corruption,
                images.real,
                hints,
                precision,
            )
        cells.append(Cell(task.name, measurement, {"task": task.name}, task.heading))
    return cells


def selection_cells(
    protocol: FineTuning, model: str, tasks: dict[Task, Images], hints: Hints
) -> list[Cell]:
    """A run on the validation part for each setting and task; none, if there is nothing to
    choose."""
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


def final_cells(
    protocol: FineTuning,
    model: str,
    tasks: dict[Task, Images],
    hints: Hints,
    chosen: dict[str, tuple[float, int]],
    seeds: Sequence[int],
) -> list[Cell]:
    """A run on all but the test part for each task that has a setting chosen, and each seed."""
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
    images: Images,
    hints: Hints,
    rate: float,
    steps: int,
) -> Recipe:
    """The fine-tuning run of a task with one setting."""
    recipe = finetune(model, images.where, "vtab", hints, task.columns)

    # BiT's crops, unless a task's classes depend on what they change
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


def weights_digest(model: str, hints: Hints) -> str:
    """A digest of a model's weights: another model under the same name is noticed by it."""
    classifier = load_as(model, hints, quiet=not on_rank_0())
    digest = hashlib.sha256()
    for name, weight in classifier.model.state_dict().items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
