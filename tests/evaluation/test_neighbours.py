"""Leave-one-out neighbours, against one image at a time."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from vitkit.data import Batch, Preprocessing, Source
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import Neighbours, Part, Subject, voted
from vitkit.weights import Classifier


class Flat(nn.Module):
    """The pixels are the features."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def features(self, images):
        return images.flatten(1).float()


class Plain(Preprocessing):
    """Images of any numbers, as they are."""

    def normalise(self, images):
        return images


def batches(images, labels, size):
    for start in range(0, len(images), size):
        rows = [min(i, len(images) - 1) for i in range(start, start + size)]
        real = torch.tensor([i < len(images) for i in range(start, start + size)])
        yield Batch(images[rows], labels[rows], real, torch.tensor(rows))


def measured(images, labels, size, k=20):
    """Metrics by name, of images in batches of `size`. The model is in training, so that nothing is
    kept of it."""
    rows = np.arange(len(labels))
    names = tuple(map(str, range(int(labels.max()) + 1)))
    source = Source(Arrays("x", np.zeros((len(rows), 1, 1), np.uint8)), rows, labels.numpy(), names)
    subject = Subject(Classifier(Flat(), Plain(size=(2, 2)), ()), learner=nn.Identity())
    part = Part(source, batches(images, labels, size))
    return {m.name: m for m in Neighbours(k).measure(subject, part)}


@pytest.mark.parametrize(("count", "k"), [(7, 20), (60, 20), (60, 3)])
def test_by_hand(count, k, monkeypatch):
    # So few at a time that sixty images are not compared all at once
    monkeypatch.setattr("vitkit.evaluation.probes.neighbours.ROWS", 25)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (count,), generator=generator)
    images = torch.randint(0, 200, (count, 3, 2, 2), generator=generator, dtype=torch.uint8)
    images[:, 0] += (labels * 20).byte()[:, None, None]
    metrics = measured(images / 255, labels, 16, k)
    x = nn.functional.normalize((images / 255).flatten(1), dim=-1)
    similarity = x @ x.T
    right = 0
    for i in range(count):
        others = [j for j in range(count) if j != i]
        nearest = sorted(others, key=lambda j: -similarity[i, j])[:k]
        votes = [0.0, 0.0, 0.0]
        for j in nearest:
            votes[labels[j]] += similarity[i, j].item() + 1
        right += votes.index(max(votes)) == labels[i]
    assert metrics["neighbours/seen"].value == count
    assert metrics["neighbours/top1"].value == pytest.approx(float(right) / count)
    assert metrics["neighbours/top1"].value > 0.36 or (count, k) != (60, 20)


def test_in_a_bfloat16_run_too():
    """Neighbours are 0.001 apart in their cosines, which bfloat16 cannot tell."""
    angles = torch.arange(1, 33) ** 2 * 1e-3
    x = torch.stack([angles.cos(), angles.sin()], 1)
    results = []
    for on in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            results.append(measured(x, torch.arange(32) // 4, 8))
    assert results[0] == results[1] and results[0]["neighbours/seen"].value == 32


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_features_that_are_not_finite_have_no_neighbours(lost):
    x = torch.ones(32, 12)
    x[5, 3] = lost
    metrics = measured(x, torch.arange(32) // 4, 8)
    assert math.isnan(metrics["neighbours/top1"].value)
    assert metrics["neighbours/top1"].interval is None


def test_alone_there_is_no_neighbour():
    with pytest.raises(ValueError, match="fewer than two"):
        measured(torch.zeros(1, 3, 2, 2), torch.zeros(1, dtype=torch.int64), 4)
    with pytest.raises(ValueError, match="k is 0"):
        Neighbours(0)


def test_the_lengths_of_features_mean_nothing():
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 4, generator=random)
    queries = torch.randn(100, 4, generator=random)
    classes = torch.arange(60) % 5
    expected = voted(rows, classes, 30, queries)
    lengths = torch.logspace(-3, 3, 60)[:, None]
    assert torch.equal(voted(rows * lengths, classes, 30, queries), expected)
    assert torch.equal(voted(rows, classes, 30, 1e3 * queries), expected)
    assert torch.equal(voted(rows, classes, 30, 1e-3 * queries), expected)


def test_an_image_does_not_ask_those_of_its_group():
    random = torch.Generator().manual_seed(0)
    things = torch.randn(60, 16, generator=random)  # of classes that mean nothing
    shots = things[:, None] + 0.05 * torch.randn(60, 5, 16, generator=random)
    rows = shots.flatten(0, 1)
    classes = torch.randint(0, 4, (60,), generator=random).repeat_interleave(5)
    groups = torch.arange(60).repeat_interleave(5)
    assert (voted(rows, classes, 5) == classes).float().mean() > 0.95
    assert (voted(rows, classes, 5, groups=groups) == classes).float().mean() < 0.4
    alone = torch.arange(300)
    assert (voted(rows, classes, 5, groups=alone) == voted(rows, classes, 5)).all()
