"""Which published weights to fine-tune, if nobody says: the largest of one family that this machine
can train in the time, of those that can be reached."""

import time
from pathlib import Path
from typing import NamedTuple

import torch

from vitkit.models import cost, named
from vitkit.system.machine import autocast, pick_precision
from vitkit.weights import hub_answers

STEPS = 200  # that a fine-tuning wants
BATCH = 32
SIDE = 1024  # of the matrices whose product says how fast the machine is
EFFICIENCY = 0.5  # of a training step, beside such a product


class Published(NamedTuple):
    """Weights on the Hugging Face hub: AugReg's, pre-trained on ImageNet-21k, fine-tuned on
    ImageNet-1k (Steiner and others 2021)."""

    name: str
    size: str
    """The model's, as `named` takes it."""
    megabytes: int


FAMILY = (  # the largest first
    Published("timm/vit_base_patch16_224.augreg_in21k_ft_in1k", "B/16", 346),
    Published("timm/vit_small_patch16_224.augreg_in21k_ft_in1k", "S/16", 88),
    Published("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "Ti/16", 23),
)


class Choice(NamedTuple):
    """Weights, and why these."""

    model: str
    """What `load` takes."""
    why: str


def choose_pretrained(minutes: float, device: torch.device) -> Choice:
    """The weights to begin with. Raises ValueError if none are on this machine and none can be
    downloaded."""
    fitting = _fitting(minutes, device)
    smaller = FAMILY[FAMILY.index(fitting) :]

    # On this machine, the one that fits best
    if _is_cached(fitting):
        return Choice(fitting.name, f"{fitting.name}, which is in the cache")

    # By download
    if hub_answers():
        why = (
            f"{fitting.name}, the largest of its family that trains in {minutes:g} minutes here; "
            f"{fitting.megabytes} MB are downloaded once"
        )
        return Choice(fitting.name, why)

    # Another of this machine: the next smaller one, then the next larger
    larger = FAMILY[: FAMILY.index(fitting)][::-1]
    for published in (*smaller, *larger):
        if _is_cached(published):
            why = f"{published.name}, which is in the cache; the Hugging Face hub cannot be reached"
            return Choice(published.name, why)
        file = _beside(published)
        if file is not None:
            why = f"{file}, which is in this directory; the Hugging Face hub cannot be reached"
            return Choice(str(file), why)
    raise ValueError(
        "no pre-trained weights: the Hugging Face hub cannot be reached, and none of vitkit's choice "
        f"are in its cache. Say which: vitkit finetune MODEL DATA, where MODEL is a file such as "
        f"{_file_name(FAMILY[-1])}, from another machine"
    )


def _fitting(minutes: float, device: torch.device) -> Published:
    """The largest model that makes enough steps in the time; the smallest if none does."""
    speed = _operations_per_second(device)
    for published in FAMILY:
        macs = cost(named(published.size)).macs
        step = 3 * 2 * macs * BATCH / (EFFICIENCY * speed)  # forward, and twice that backward
        if step * STEPS < 60 * minutes:
            return published
    return FAMILY[-1]


def _operations_per_second(device: torch.device) -> float:
    """How fast the device multiplies matrices, in its best precision; a tenth of a second."""
    precision = pick_precision("auto", device).precision
    a = torch.ones(SIDE, SIDE, device=device)
    fastest = torch.inf
    with autocast(device, precision):
        for _ in range(6):
            began = time.perf_counter()
            (a @ a)[0, 0].item()
            fastest = min(fastest, time.perf_counter() - began)
    return 2 * SIDE**3 / fastest


def _is_cached(published: Published) -> bool:
    """Whether the hub's cache has these weights."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return False
    return isinstance(try_to_load_from_cache(published.name, "model.safetensors"), str)


def _beside(published: Published) -> Path | None:
    """The weights as a file in the working directory, under their own name; None if there is
    none."""
    file = Path(_file_name(published))
    return file if file.is_file() else None


def _file_name(published: Published) -> str:
    return published.name.partition("/")[2] + ".safetensors"
