"""Counts against counting by hand; padding counts nowhere."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitkit.data import Batch, Preprocessing, Source
from vitkit.data.stores import Arrays
from vitkit.evaluate import Accuracy, Part, Subject, align
from vitkit.evaluate.labels import imagenet_wordnet, note
from vitkit.weights import Classifier
from vitkit.weights.labels import imagenet_labels


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
    known = tuple(f"class {i}" for i in range(table.shape[1]))
    none = np.zeros(0, np.int64)
    source = Source(Arrays("x", np.zeros((0, 1, 1), np.uint8)), none, none, names or known)
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


def test_classes_meet_by_name():
    assert align(["bee", "ant"], ["ant", "wasp", "bee"]).tolist() == [2, 0]
    with pytest.raises(
        ValueError,
        match=r"1 of 2 classes that the model does not know \(fly\); the model knows ant, bee",
    ):
        align(["ant", "fly"], ["ant", "bee"])


def test_numbers_that_are_names_meet_by_name():
    folders = sorted(str(i) for i in range(12))  # 0, 1, 10, 11, 2, ...
    integers = [str(i) for i in range(12)]
    assert align(folders, folders).tolist() == list(range(12))
    assert [folders[i] for i in align(integers, folders)] == integers
    assert [folders[i] for i in align(integers[:10], folders)] == integers[:10]
    assert note(integers, folders) == ""
    with pytest.raises(ValueError, match=r"1 of 3 classes that the model does not know \(1\)"):
        align(["0", "1", "2"], ["0", "2", "4"])


def test_numbers_without_names_are_positions_and_it_is_said():
    model = ["tench", "goldfish", "shark"]
    assert align(["0", "1"], model).tolist() == [0, 1]
    assert "only the numbers 0 to 1; they are taken for" in note(["0", "1"], model)
    assert note(["tench"], model) == ""


def test_imagenet_folders_meet_by_their_wordnet_numbers():
    imagenet = imagenet_labels()
    folders = [
        "n02102040",
        "n03000684",
        "n01440764",
    ]  # three of Imagenette's: English springer, chain saw, tench
    numbers = align(folders, imagenet).tolist()
    assert [imagenet[i] for i in numbers] == ["English springer", "chain saw", "tench"]
    assert align(imagenet_wordnet(), imagenet).tolist() == list(range(1000))
    with pytest.raises(ValueError, match="n00000001"):
        align(["n00000001"], imagenet)
