"""How long a training step takes on this machine, before any is made."""

import statistics
import time
from copy import deepcopy

import torch
from torch import nn

from vitkit.system.machine import autocast
from vitkit.training import Recipe

TIMED = 5  # steps, after one that warms up: their median does not see a moment of other work


def seconds_of_a_step(model: nn.Module, recipe: Recipe, device: torch.device) -> float:
    """The time of the forward and backward pass of a batch, on noise; the model stays as it is. What
    the optimiser and the loader add is a few percent."""
    micro_batch = min(recipe.micro_batch or recipe.batch, recipe.batch)
    copy = deepcopy(model).to(device).train()
    height, width = recipe.model.image
    images = torch.rand(micro_batch, 3, height, width, device=device)
    times = []
    for _ in range(1 + TIMED):
        began = time.perf_counter()
        with autocast(device, recipe.precision):
            loss = copy(images).float().square().mean()
        loss.backward()
        loss.item()  # waits for a GPU
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:]) * recipe.batch / micro_batch
