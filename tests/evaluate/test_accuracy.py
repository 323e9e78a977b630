"""Counts against counting by hand; padding counts nowhere."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitkit.data import Batch
from vitkit.evaluate import accuracy, align
from vitkit.evaluate.labels import imagenet_wordnet
from vitkit.weights.labels import imagenet_labels


class Fixed(nn.Module):
    """Gives each image the logits that its first pixels name."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, images):
        return self.table[images[:, 0, 0, 0].long()]


def batches(count, size, classes):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (count,), generator=generator)
    for start in range(0, count, size):
        index = torch.arange(start, start + size)
        images = torch.zeros(size, 3, 1, 1, dtype=torch.uint8)
        images[:, 0, 0, 0] = index.clamp(max=count - 1).to(torch.uint8)
        yield Batch(images, labels[index.clamp(max=count - 1)], index < count, index)


@pytest.mark.parametrize("size", [1, 7, 10, 64])
def test_every_example_counts_once(size):
    table = torch.randn(23, 10, generator=torch.Generator().manual_seed(1))
    labels = torch.cat([b.targets[b.real] for b in batches(23, size, 10)])
    found = dict(accuracy(batches(23, size, 10), lambda x: x)(Fixed(table)))
    assert found["seen"] == 23
    assert found["top1"] == (table.argmax(-1) == labels).double().mean().item()
    ranks = (table > table[torch.arange(23), labels][:, None]).sum(-1)
    assert found["top5"] == pytest.approx((ranks < 5).float().mean().item())
    assert found["loss"] == pytest.approx(F.cross_entropy(table, labels).item(), rel=1e-6)


def test_padding_may_be_anything():
    table = torch.zeros(5, 3)
    table[4] = math.nan

    def padded():
        images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 1, 1)
        yield Batch(images, torch.zeros(5, dtype=torch.long), torch.arange(5) < 4, torch.arange(5))

    found = dict(accuracy(padded(), lambda x: x)(Fixed(table)))
    assert (found["seen"], found["loss"]) == (4, pytest.approx(math.log(3)))
    assert "top5" not in found


def test_the_model_comes_back_as_it_was():
    model = Fixed(torch.zeros(9, 3)).train()
    dict(accuracy(batches(9, 3, 3), lambda x: x)(model))
    assert model.training
    with pytest.raises(ValueError, match="no image to evaluate on"):
        dict(accuracy([], lambda x: x)(model))


def test_classes_meet_by_name():
    assert align(["bee", "ant"], ["ant", "wasp", "bee"]).tolist() == [2, 0]
    assert align(["0", "1"], ["tench", "goldfish", "shark"]).tolist() == [0, 1]
    with pytest.raises(
        ValueError,
        match=r"1 of 2 classes that the model does not know \(fly\); the model knows ant, bee",
    ):
        align(["ant", "fly"], ["ant", "bee"])


def test_imagenet_folders_meet_by_their_wordnet_numbers():
    imagenet = imagenet_labels()
    folders = [
        "n02102040",
        "n03000684",
        "n01440764",
    ]  # three of Imagenette's: English springer, chain saw, tench
    found = align(folders, imagenet).tolist()
    assert [imagenet[i] for i in found] == ["English springer", "chain saw", "tench"]
    assert align(imagenet_wordnet(), imagenet).tolist() == list(range(1000))
    with pytest.raises(ValueError, match="n00000001"):
        align(["n00000001"], imagenet)
