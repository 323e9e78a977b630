"""Models whose answers are known: each image gets the logits of its row of a table."""

import numpy as np
import torch
from torch import nn

from vitkit.data import Batch, Preprocessing, Source
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import Part, Subject, answers
from vitkit.models import create, vit
from vitkit.weights import Classifier, save


class Fixed(nn.Module):
    """Gives each image the logits of the row that its first pixel's red and green name."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, images):
        levels = ((images[:, :2, 0, 0] + 1) * 127.5).round().long()
        return self.table[levels[:, 0] + 256 * levels[:, 1]]


def classifier_of(table, labels=None, activation="softmax"):
    labels = labels or tuple(f"class {k}" for k in range(table.shape[1]))
    return Classifier(Fixed(torch.as_tensor(table)), Preprocessing(size=(1, 1)), labels, activation)


def part_of(targets, labels, batch=7, kind="class"):
    """Images with these targets, the last batch filled up."""
    if kind == "class":
        targets = np.asarray(targets, np.int64)
    count = len(targets)
    store = Arrays("x", np.zeros((count, 1, 1), np.uint8))
    source = Source(store, np.arange(count), targets, tuple(labels), kind)
    batches = []
    for start in range(0, count, batch):
        index = torch.arange(start, start + batch)
        rows = index.clamp(max=count - 1)
        images = torch.zeros(batch, 3, 1, 1, dtype=torch.uint8)
        images[:, 0, 0, 0] = (rows % 256).to(torch.uint8)
        images[:, 1, 0, 0] = (rows // 256).to(torch.uint8)
        of_batch = torch.from_numpy(source.targets_of(rows.numpy()))
        batches.append(Batch(images, of_batch, index < count, rows))
    return Part(source, batches)


def measured(evaluator, classifier, part):
    """An evaluator's metrics by name."""
    metrics = evaluator.measure(Subject(classifier), part)
    return {metric.name: metric for metric in metrics}


def answered(table, targets, labels=None, names=None, **how):
    """The answers of a model with this table; `names` are the data's classes, by default the
    model's."""
    classifier = classifier_of(table, labels)
    return answers(classifier, part_of(targets, names or classifier.labels), **how)


def random_answers(count, classes, seed=0, scale=2.0):
    """Logits (N, K) that are right somewhat often, and targets (N,)."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, classes, count)
    logits = random.normal(0, 1, (count, classes)).astype(np.float32) * scale
    logits[np.arange(count), targets] += 2
    return torch.from_numpy(logits), targets


def saved(path, labels, name="mu/16", side=32, **changes):
    """A small model with these classes, which answers the first, as a model directory: its path as
    text."""
    network = create(vit(name, image=(side, side), classes=len(labels), **changes), seed=0)
    if labels:
        nn.init.normal_(network.head.weight, std=1e-4)
        network.head.bias.data[0] = 1
    return str(save(Classifier(network, Preprocessing(size=(side, side)), tuple(labels)), path))
