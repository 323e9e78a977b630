"""Heads of candidates, and the model that a point is written as."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import photograph
from PIL import Image

from vitkit.apps.faster.bodies import Arithmetic, Shape
from vitkit.apps.faster.heads import head_of
from vitkit.apps.faster.losses import SAME
from vitkit.apps.faster.pareto import ParetoLine, Point
from vitkit.apps.faster.searching import Found
from vitkit.apps.faster.subjects import SearchSubject
from vitkit.apps.faster.writing import write
from vitkit.data import Preprocessing, open_source
from vitkit.evaluation import Probing
from vitkit.finetuning import head_on
from vitkit.models import create, vit
from vitkit.weights import Classifier, load

TORCH = Arithmetic("torch", "float32")
WHOLE = Shape((16, 16), 2)


class Given:
    """A body whose states are given: nothing is computed."""

    def __init__(self, *_):
        pass

    def states(self, source):
        return np.random.default_rng(0).normal(size=(len(source), 128)).astype(np.float32)

    def read(self, states, shape, reads):
        return states


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """A model of two blocks whose biases are large, and the images that its candidates are evaluated on."""
    for module in ("heads", "writing"):
        monkeypatch.setattr(f"vitkit.apps.faster.{module}.Body", Given)
    for number in range(12):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(20, 20, number)).save(path)
    source = open_source(str(tmp_path / "photos"))
    config = vit("mu/8", image=(16, 16), depth=2, width=128, heads=2, mlp=16, classes=2)
    network = create(config, seed=0).eval()
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    network.head.bias.data[:] = torch.tensor([300.0, 200.0])
    classifier = Classifier(network, Preprocessing((16, 16)), ("a", "b"))
    return SearchSubject(classifier, source, source, None, "photos")


def test_a_head_on_fewer_blocks_answers_as_the_classifier(subject):
    """As it answers the images that it is evaluated on, it answers later."""
    head = head_of(subject, Given(), Shape((16, 16), 1), TORCH)
    x = Given().states(subject.evaluated)
    own = head_on(subject.classifier, x).double()
    torch.testing.assert_close(head.answers, own, rtol=0, atol=50)
    torch.testing.assert_close(head.logits(subject.classifier, x), head.answers)


@pytest.mark.parametrize("at_most", [0.0, 0.01])
def test_only_a_point_of_the_same_numbers_is_the_model_itself(
    subject, tmp_path, monkeypatch, at_most
):
    """The head of a run's model is solved again for every candidate, also for that of the whole model."""
    monkeypatch.setattr("vitkit.apps.faster.writing._share", lambda *_: 1.0)
    subject = replace(subject, asked=Probing.of(subject.evaluated))
    loss = SAME._replace(at_most=at_most)
    point = Point("whole", "torch", "float32", (16, 16), 2, 0, 1.0, 1.0, 1.0, loss)
    found = Found(
        ParetoLine(point, (point,), 12, "", 12, 1), {"whole": (TORCH, WHOLE)}, TORCH, {}, 1.0
    )
    write(subject, found, point, tmp_path / "fast")
    written = load(tmp_path / "fast", quiet=True)
    assert written.origin["faster"] == "whole"
    is_own = torch.equal(written.model.head.weight, subject.classifier.model.head.weight)
    assert is_own == (at_most == 0)
