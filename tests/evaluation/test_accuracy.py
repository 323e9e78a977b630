"""Counts against counting by hand; padding counts nowhere."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitkit.data import Batch, Preprocessing, Source
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import Accuracy, Part, Subject
from vitkit.weights import Classifier


class Fixed(nn.Module):
    """Gives each image the logits of the row that its first pixel names."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, images):
        return self.table[((images[:, 0, 0, 0] + 1) * 127.5).round().long()]


def labels_of(count, classes):
    return torch.randint(0, classes, (count,), generator=torch.Generator().manual_seed(0))


def batches(count, size, classes):
    labels = labels_of(count, classes)
    for start in range(0, count, size):
        index = torch.arange(start, start + size)
        rows = index.clamp(max=count - 1)
        images = torch.zeros(size, 3, 1, 1, dtype=torch.uint8)
        images[:, 0, 0, 0] = rows.to(torch.uint8)
        yield Batch(images, labels[rows], index < count, index)


def measured(table, batches, names=None):
    """Metrics by name, of a model with these logits for its images; `names` are the data's
    classes."""
    batches = list(batches)
    known = tuple(f"class {i}" for i in range(table.shape[1]))
    targets = np.concatenate([np.zeros(0, np.int64), *(b.targets[b.real] for b in batches)])
    store = Arrays("x", np.zeros((len(targets), 1, 1), np.uint8))
    source = Source(store, np.arange(len(targets)), targets, names or known)
    classifier = Classifier(Fixed(table), Preprocessing(size=(1, 1)), known)
    return {
        metric.name: metric
        for metric in Accuracy().measure(Subject(classifier), Part(source, batches))
    }


@pytest.mark.parametrize("size", [1, 7, 10, 64])
def test_every_example_counts_once(size):
    table = torch.randn(23, 10, generator=torch.Generator().manual_seed(1))
    labels = labels_of(23, 10)
    metrics = measured(table, batches(23, size, 10))
    assert metrics["seen"].value == 23
    assert metrics["top1"].value == (table.argmax(-1) == labels).double().mean().item()
    low, high = metrics["top1"].interval
    assert 0 < low < metrics["top1"].value < high < 1
    ranks = (table > table[torch.arange(23), labels][:, None]).sum(-1)
    assert metrics["top5"].value == pytest.approx((ranks < 5).float().mean().item())
    assert metrics["loss"].value == pytest.approx(F.cross_entropy(table, labels).item(), rel=1e-6)


def test_padding_may_be_anything():
    table = torch.zeros(5, 3)
    table[4] = math.nan

    def padded():
        images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 1, 1)
        yield Batch(images, torch.zeros(5, dtype=torch.long), torch.arange(5) < 4, torch.arange(5))

    metrics = measured(table, padded())
    assert (metrics["seen"].value, metrics["loss"].value) == (4, pytest.approx(math.log(3)))
    assert "top5" not in metrics


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_model_whose_outputs_are_not_finite_has_no_accuracy(lost):
    table = torch.zeros(23, 10)
    table[7, 2] = lost
    metrics = measured(table, batches(23, 7, 10))
    for name in ("top1", "top5"):
        assert math.isnan(metrics[name].value)
        assert metrics[name].interval is None
        assert metrics[name].text() == "nan %"


def test_classes_of_the_data_in_another_order_meet_those_of_the_model():
    table = torch.randn(23, 3, generator=torch.Generator().manual_seed(1))
    names = ("class 2", "class 0", "class 1")
    expected = table.argmax(-1) == torch.tensor([2, 0, 1])[labels_of(23, 3)]
    metrics = measured(table, batches(23, 5, 3), names)
    assert metrics["top1"].value == expected.double().mean().item()


def test_nothing_to_count_is_a_sentence():
    with pytest.raises(ValueError, match="no image to evaluate on"):
        measured(torch.zeros(9, 3), [])
    with pytest.raises(ValueError, match="no classification head"):
        measured(torch.zeros(9, 0), [])


@pytest.mark.parametrize("rare", [4, 3])
def test_classes_of_unequal_size_count_alike_too(rare):
    """Ten images of one class, all right, and a few of another, of which one is."""
    truth = torch.tensor([0] * 10 + [1] * rare)
    answers = torch.tensor([0] * 10 + [1] + [0] * (rare - 1))
    rows = torch.arange(len(truth))
    images = torch.zeros(len(truth), 3, 1, 1, dtype=torch.uint8)
    images[:, 0, 0, 0] = rows.to(torch.uint8)
    batch = Batch(images, truth, torch.ones(len(truth), dtype=torch.bool), rows)
    metrics = measured(F.one_hot(answers, 3).float(), [batch])
    assert ("balanced_accuracy" in metrics) == (rare == 3)  # of three times the images
    if rare == 3:
        assert metrics["balanced_accuracy"].value == pytest.approx((1 + 1 / 3) / 2)
