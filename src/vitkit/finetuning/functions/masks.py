"""`vitkit finetune photos/ --masks masks/`: a model that classifies every pixel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.data import Columns
from vitkit.finetuning.functions.result import Finetuned
from vitkit.finetuning.segmentation.directory import RECORD
from vitkit.finetuning.segmentation.request import MaskRequest
from vitkit.finetuning.segmentation.run import make
from vitkit.models import ViTConfig
from vitkit.system.console.messages import say
from vitkit.system.errors import BadSettings, Interrupted
from vitkit.system.functions.steps import DATA, step
from vitkit.system.processes.ranks import from_rank_0, process_group
from vitkit.system.storage.files import parse_json
from vitkit.training import RUNS, Occupied, is_run, run_name, tidied
from vitkit.weights import Hints, check_pretrained, load, load_as

MINUTES = 2.0  # the default of `finetune`
KIND = "masks"  # the end of the names of run directories


def check_alone(others: Sequence[str]) -> None:
    """Raises BadSettings for settings that are about images with one class each."""
    if others:
        named = ", ".join(f"`{name}`" for name in others)
        raise BadSettings(f"{named} cannot be given with `masks`; leave it out")


def finetune_masks(
    model: str,
    data: str,
    *,
    masks: str,
    legend: Path | None,
    ignore: int | None,
    minutes: float,
    workdir: Path | None,
    device: str,
    columns: Columns,
    hints: Hints,
    patience: float,
    exclude: str,
    choose: Callable[[str, Path | None, float, str, Columns], str],
) -> Finetuned:
    """Make a model that classifies every pixel.

    exclude: a file that lists training images to leave out; "" for none.
    choose: chooses a pre-trained model if the caller names none. The others are those of `finetune`.
    """
    data = tidied(data or model)
    if not data:
        raise BadSettings(f"the images are missing: {step('finetune', DATA, masks='masks/')}")
    if not 0 <= minutes < math.inf:
        raise BadSettings(
            f"`minutes` is {minutes:g}; give a time, such as 5, or 0 for the closed form alone"
        )
    if tidied(model) in ("", data):
        model = choose(data, workdir, minutes or MINUTES, device, columns)
    told = [name for name in ("crop", "resize", "labels", "stride") if getattr(hints, name)]
    check_alone(told)
    published = load_as(model, replace(hints, image=(), tokens=None), quiet=True)
    check_pretrained(published, model)
    tokens = hints.tokens
    config = published.model.config
    if hints.image and isinstance(config, ViTConfig):  # `dense` refuses others
        rows, columns_of_patches = config.tiling.grid(config.fitting(hints.image))
        tokens = rows * columns_of_patches
    request = MaskRequest(model, data, masks, legend, ignore, columns, tokens, minutes, exclude)
    with process_group(device, patience) as opened:
        run_dir = from_rank_0(lambda: workdir or run_dir_for(request))
        if not from_rank_0(lambda: is_free(run_dir, request)):
            raise Occupied(f"{run_dir} holds another run; choose another `workdir`, or remove it")
        try:
            result = make(request, published, run_dir, opened)
        except Interrupted:
            if (run_dir / "model").exists():
                say(f"{run_dir / 'model'} holds the first model; the same command continues")
            raise
    classifier = load(run_dir, quiet=True)
    return Finetuned(data, workdir, classifier, run_dir, result.page, None, None, masks=result)


def run_dir_for(request: MaskRequest) -> Path:
    """The directory of a run that was not given one: runs/NAME-masks, or with a number behind it if that holds
    another run."""
    name = run_name(request.data, KIND)
    run_dir = RUNS / name
    number = 2
    while not is_free(run_dir, request):
        run_dir = RUNS / f"{name}-{number}"
        number += 1
    return run_dir


def is_free(run_dir: Path, request: MaskRequest) -> bool:
    """Whether a directory has no model, or that of an earlier run on the same images and masks, which is replaced."""
    if is_run(run_dir):
        return False
    if not (run_dir / "model").exists():
        return True
    try:
        written = parse_json((run_dir / RECORD).read_bytes())
        return (written["data"], written["masks"]) == (request.data, request.masks)
    except (OSError, ValueError, KeyError, TypeError):
        return False
