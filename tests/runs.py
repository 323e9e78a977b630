"""What a run has left, and runs to which something happens."""

import json
import os
import signal
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from vitkit.data import Batch
from vitkit.models import create
from vitkit.objectives import Supervised
from vitkit.objectives.supervised import SupervisedLearner
from vitkit.recipes import Facts
from vitkit.training.state.checkpoints import checkpoints, step_of
from vitkit.training.state.state import State

FACTS = Facts(1437, tuple("0123456789"))  # of the digits


def capture_compiled(monkeypatch):
    """From now on modules that are compiled are captured, and run as they are: only tests/test_device.py
    compiles C++, which takes long. Returns the list that they are appended to."""
    captured = []
    original = torch.nn.Module.compile

    def capture(module, **how):
        captured.append(module)
        original(module, **{**how, "backend": "aot_eager"})

    monkeypatch.setattr(torch.nn.Module, "compile", capture)
    return captured


def weights(run_dir):
    return load_file(run_dir / "model" / "model.safetensors")


def same(tensors, others):
    if tensors.keys() != others.keys():
        return False
    return all(torch.equal(tensors[name], others[name]) for name in tensors)


def curve(run_dir):
    """The lines of metrics.jsonl, without what a clock says."""
    lines = []
    for text in (run_dir / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        for timing in ("images_per_second", "data_wait", "tflops", "mfu"):
            line.pop(timing, None)
        lines.append(line)
    return lines


def losses(run_dir):
    return torch.tensor([line["loss"] for line in curve(run_dir) if line["event"] == "training"])


def assert_same_run(run_dir, other):
    assert same(weights(run_dir), weights(other))
    assert curve(run_dir) == curve(other)


def assert_nearly_same_weights(run_dir, other):
    """Up to rounding."""
    torch.testing.assert_close(weights(run_dir), weights(other), atol=1e-5, rtol=1e-4)


def checkpoint_steps(run_dir):
    return [step_of(path) for path in checkpoints(run_dir)]


def read_json(file):
    return json.loads(file.read_text())


def state_of(recipe, learner=None):
    """The state of a new run of a resolved recipe."""
    if learner is None:
        model = create(recipe.model, seed=0)
        learner = recipe.objective.learner(model, recipe.data.preprocessing)
    return State(learner, recipe.optim.build(learner))


def digits_as_files(folder, count, part=lambda _: ""):
    """So many digits as files, in folders of their classes; `part` names another folder above."""
    digits = load_digits()
    for i in range(count):
        path = folder / part(i) / str(digits.target[i]) / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[i] * 15).astype("uint8")).convert("RGB").save(path)
    return str(folder)


@contextmanager
def events(stop=(), poison=()):
    """Within it runs of Eventful get SIGTERM, or a loss that is NaN, in the step that follows so
    many others."""
    Eventful.stop = stop
    Eventful.poison = poison
    try:
        yield
    finally:
        Eventful.stop = ()
        Eventful.poison = ()


@dataclass(frozen=True)
class Eventful(Supervised):
    """The supervised loss, with `events`. They are not settings: a run may be continued without
    them."""

    stop: ClassVar[Sequence[int]] = ()
    poison: ClassVar[Sequence[int]] = ()

    def learner(self, model, preprocessing=None):
        return EventfulLearner(model, self)


class EventfulLearner(SupervisedLearner):
    def before(self, step, total):
        self.step = step

    def forward(self, images, labels, keys):
        loss = super().forward(images, labels, keys)
        if self.step in self.objective.stop:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.step in self.objective.poison:
            return loss * float("nan")
        return loss


def random_levels(n, size, seed=0):
    """n images of random levels, uint8 (n, 3, *size)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, *size), generator=generator, dtype=torch.uint8)


def batch_of(images, targets=None):
    """Images as a batch; all are of the first class unless targets say otherwise."""
    count = len(images)
    if targets is None:
        targets = torch.zeros(count, dtype=torch.int64)
    return Batch(images, targets, torch.ones(count, dtype=torch.bool), torch.arange(count))
