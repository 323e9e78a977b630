"""The fine-tuning of a model that classifies every pixel: all weights, from the closed form on, by the ordinary
training loop.

Unlike for classes (fine_tuning.py of `finetuning`), it starts from the head in closed form: there are few steps, and a
new head would take most of them.
"""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from vitkit.data import Augmentation, Columns, sided
from vitkit.evaluation import Eval, MeanIoU
from vitkit.finetuning.fine_tuning import EPOCHS, FEWEST, TOO_FEW, time_text, worth_compiling
from vitkit.models import ViTConfig
from vitkit.objectives import Segmentation
from vitkit.recipes import Data, Optim, Recipe
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, some
from vitkit.system.machine import Precision
from vitkit.system.span import Span
from vitkit.training import Deadline, Ends, run_recipe, seconds_of_a_step
from vitkit.weights import Classifier

NAME = "finetune-masks"  # of the recipe
RUN = "fine-tuned"  # directory of the fine-tuning, inside the run directory
START = "closed-form"  # directory of the model that it begins with
HOLD_OUT = 0.2  # share of the training images that choose between the two models, without a validation part
BATCH = 2  # crops of a step on a CPU: many small steps
GPU_BATCH = 8
LR = 1e-4
LAYER_DECAY = 0.75
CROP = 6 / 7
"""Side of a crop, as a share of that of a square with as many pixels as the model reads."""
SCALES = (0.75, 1.5)
MEASURED = 8  # held-out images that are measured at the end of the run; all of them are measured for the choice


class Tuning(NamedTuple):
    """The length of the fine-tuning."""

    steps: int
    """Number of steps as far as known; 0 if there is no time for enough of them."""
    seconds_of_a_step: float = 0.0
    afterwards: float = 0.0
    """Seconds that measuring the models takes after it."""
    compiled: bool = False
    """Whether the model is compiled."""


def recipe_of(
    start: Classifier,
    start_dir: Path,
    data: Data,
    rare: float,
    precision: Precision,
    on_gpu: bool,
) -> Recipe:
    """The recipe of the fine-tuning, without its length.

    Args:
        start: The model in closed form that it begins with.
        start_dir: Where that is saved.
        data: The images and their masks, and how they are divided.
        rare: How much pixels of rare classes count (`Segmentation.rare`), as in the closed form.
        precision: The arithmetic of the run.
        on_gpu: Whether a GPU computes it.
    """
    config = start.model.config
    assert isinstance(config, ViTConfig)  # `dense` refuses others
    height, width = start.preprocessing.size
    side = round(math.sqrt(height * width))
    crop = config.fitting((round(CROP * side), round(CROP * side)))
    augmentation = Augmentation(
        crop="scale_crop",
        resize=side,
        scales=SCALES,
        size=crop,
        flip=not sided(start.labels),
    )
    batch = GPU_BATCH if on_gpu else BATCH
    unset = Span(0, "steps")
    return Recipe(
        name=NAME,
        model=config,
        init=str(start_dir),
        init_head=True,
        data=Data(
            source=data.source,
            columns=data.columns,
            masks=data.masks,
            legend=data.legend,
            ignore=data.ignore,
            exclude=data.exclude,
            preprocessing=start.preprocessing,
            augmentation=augmentation,
            parts="select",
            hold_out=HOLD_OUT,
            on_bad_image="skip",
        ),
        optim=Optim("adam", LR, layer_decay=LAYER_DECAY, weight_decay=0.01, decay_on="kernels"),
        objective=Segmentation(rare=rare),
        length=unset,
        batch=batch,
        precision=precision,
        evals=(Eval(MeanIoU(most=MEASURED)),),
        evaluate_every=unset,
        save_every=unset,
    )


def data_of(
    source: str,
    masks: str,
    legend: Path | None,
    ignore: int | None,
    columns: Columns,
    exclude: str = "",
) -> Data:
    """The images of a fine-tuning, and how they are divided: the validation part chooses, or else a share of the
    training images."""
    return Data(
        source=source,
        columns=columns,
        masks=masks,
        legend=str(legend or ""),
        ignore=ignore,
        exclude=exclude,
        parts="select",
        hold_out=HOLD_OUT,
    )


def tuning_for(
    start: Classifier,
    recipe: Recipe,
    device: torch.device,
    minutes: float,
    spent: float,
    afterwards: float,
) -> Tuning:
    """The length of the fine-tuning: the steps that fit into the time. Logs why if these are too few.

    Args:
        start: The model.
        recipe: That of the fine-tuning.
        device: Where it runs.
        minutes: The time of the whole command.
        spent: Seconds of it that are over.
        afterwards: Seconds that measuring takes at the end.
    """
    quick_enough = max(60 * minutes - spent - afterwards, 0.0) / (2 * TOO_FEW)
    began = time.monotonic()
    step = seconds_of_a_step(start.model, recipe, device, quick_enough or math.inf)
    spent += time.monotonic() - began
    left = 60 * minutes - spent - afterwards
    steps = int(left / step)
    if steps < TOO_FEW:
        enough = math.ceil((spent + afterwards + FEWEST * step) / 60)
        say(
            f"a training step takes {step:.1f} s here, and measuring the models {afterwards:.0f} s, too long for "
            f"{time_text(minutes)}: `minutes={enough}` would do, or smaller weights, or a GPU"
        )
        return Tuning(0)
    return Tuning(steps, step, afterwards, worth_compiling(device, steps * step))


def fine_tuned(
    recipe: Recipe,
    run_dir: Path,
    tuning: Tuning,
    labels: tuple[str, ...],
    train: int,
    minutes: float,
    ends_at: float,
    device: torch.device,
) -> None:
    """Fine-tune, in a directory of its own; continues the run if it was interrupted. All ranks call this together.

    Args:
        recipe: Without its length.
        run_dir: The run directory.
        tuning: Its length.
        labels: The classes.
        train: Number of images that it learns from.
        minutes: The time of the whole command.
        ends_at: When the fine-tuning ends at the latest, as time.monotonic() counts.
        device: Where it runs.
    """
    epochs = Span(EPOCHS, "epochs").steps(recipe.batch, train)
    most = max(FEWEST, int(epochs))
    steps = min(tuning.steps, most)
    say(
        f"now fine-tuning for some {counted(steps, 'step')}, as many as fit into {time_text(minutes)}; Ctrl-C ends "
        "it and keeps the better model"
    )
    if not recipe.data.augmentation.flip:
        say(f"no image is mirrored, because of {some(sided(labels), 3)}")
    ends = Ends(by_a_person=True, deadline=Deadline(ends_at, most))
    run_recipe(with_steps(recipe, steps, tuning.compiled), run_dir / RUN, device.type, ends=ends)


def with_steps(recipe: Recipe, steps: int, compiled: bool) -> Recipe:
    """The recipe for this number of steps. Masks take long to measure, so it is evaluated at its end."""
    every = Span(max(steps // 4, 1), "steps")
    return replace(
        recipe,
        length=Span(steps, "steps"),
        optim=replace(recipe.optim, warmup=Span(steps // 10, "steps")),
        evaluate_every=Span(steps, "steps"),
        save_every=every,
        log_every=max(min(50, steps // 10), 1),
        compile=compiled,
    )
