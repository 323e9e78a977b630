"""How long a training step takes on this machine."""

import math
import time
from copy import deepcopy

import torch
from torch import nn

from vitkit.system.machine import autocast
from vitkit.training.recipe import Recipe

LOADING = 1.08  # what a step takes with the loader beside it, as a share of it alone
FEWEST = 2  # steps that are timed, after one that warms up;
MOST = 5  # so many, if they are quick:
LONG = 3.0  # seconds after which no other is timed


def seconds_of_a_step(
    model: nn.Module, recipe: Recipe, device: torch.device, quick_enough: float = math.inf
) -> float:
    """The time of a training step on noise, with what the loader takes beside it; the model stays as
    it is. It is the fastest of several: what else the machine does in a moment says nothing of the
    next one.

    quick_enough: seconds. As long as no step has been so quick, others are timed, three times LONG.
    """
    micro_batch = min(recipe.micro_batch or recipe.batch, recipe.batch)
    copy = deepcopy(model).to(device).train()
    weights = list(copy.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.0, momentum=0.9)
    height, width = recipe.model.image
    images = torch.rand(micro_batch, recipe.model.channels, height, width, device=device)
    start = time.perf_counter()
    times = []  # the first step warms up
    while not _is_known(times[1:], time.perf_counter() - start, quick_enough / LOADING):
        began = time.perf_counter()
        with autocast(device, recipe.precision):
            loss = copy(images).float().square().mean()
        loss.backward()
        loss.item()  # waits for a GPU
        computed = time.perf_counter()
        nn.utils.clip_grad_norm_(weights, 1.0).item()
        optimizer.step()
        optimizer.zero_grad()
        ended = time.perf_counter()
        times.append((computed - began) * recipe.batch / micro_batch + ended - computed)
    return min(times[1:]) * LOADING


def _is_known(times: list[float], spent: float, quick_enough: float) -> bool:
    """Whether the steps that were timed tell how fast a machine is."""
    if len(times) < FEWEST:
        return False
    if min(times) > quick_enough:
        return spent > 3 * LONG
    return len(times) >= MOST or spent > LONG
