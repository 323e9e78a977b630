"""A run that takes a second: the digits, a tiny model, everything on that a run can have."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

from vitkit.recipes import recipe
from vitkit.train import Recipe, Span


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices gain nothing from a second thread, and wait for it where the machine is shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture
def tiny() -> Recipe:
    base = recipe("digits")
    return replace(
        base,
        model=replace(base.model, width=24, depth=2, mlp=48, heads=2, dropout=0.1, stochastic_depth=0.1),
        optim=replace(base.optim, warmup=Span(5)),
        data=replace(base.data, workers=0),
        length=Span(30),
        batch=50,
        log_every=5,
        evaluate_every=Span(10),
        save_every=Span(6),
    )
