"""A run that takes a second: the digits, a tiny model, everything on that a run can have."""

import pytest
import torch
from rich.console import Console

from vitkit.data import Augmentation, Preprocessing
from vitkit.models import ViTConfig
from vitkit.train import Data, Optim, Recipe, Span


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
    return Recipe(
        model=ViTConfig(
            width=24, depth=2, mlp=48, heads=2, patch=2, image=(8, 8), classes=0, dropout=0.1, stochastic_depth=0.1
        ),
        data=Data(
            source="digits",
            preprocessing=Preprocessing(size=(8, 8)),
            augmentation=Augmentation(crop="pad_crop", pad=1, flip=False),
            workers=0,
        ),
        optim=Optim(lr=2e-3, weight_decay=0.05, warmup=Span(5)),
        length=Span(30),
        batch=50,
        average=0.8,
        log_every=5,
        evaluate_every=Span(10),
        save_every=Span(6),
    )
