"""How long a training step takes on this machine."""

import statistics
import time
from copy import deepcopy

import torch
from torch import nn

from vitkit.system.machine import autocast
from vitkit.training.recipe import Recipe

LOADING = 1.08  # what a step takes with the loader beside it, as a share of it alone
TIMED = 5  # steps, after one that warms up: their median does not see a moment of other work


def seconds_of_a_step(model: nn.Module, recipe: Recipe, device: torch.device) -> float:
    """The time of a training step on noise, with what the loader takes beside it; the model stays as
    it is."""
    micro_batch = min(recipe.micro_batch or recipe.batch, recipe.batch)
    copy = deepcopy(model).to(device).train()
    weights = list(copy.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.0, momentum=0.9)
    height, width = recipe.model.image
    images = torch.rand(micro_batch, recipe.model.channels, height, width, device=device)
    times = []
    for _ in range(1 + TIMED):
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
    return statistics.median(times[1:]) * LOADING
