"""Models whose answers are known: each image gets the logits of its row of a table."""

import numpy as np
import torch
from torch import nn

from vitkit.data import Batch, Preprocessing, Source
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import Part, answers
from vitkit.weights import Classifier


class Fixed(nn.Module):
    """Gives each image the logits of the row that its first pixel's red and green name."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, images):
        levels = ((images[:, :2, 0, 0] + 1) * 127.5).round().long()
        return self.table[levels[:, 0] + 256 * levels[:, 1]]


def classifier_of(table, labels=None):
    labels = labels or tuple(f"class {k}" for k in range(table.shape[1]))
    return Classifier(Fixed(torch.as_tensor(table)), Preprocessing(size=(1, 1)), labels)


def part_of(targets, labels, batch=7, rank=0, ranks=1):
    """Images of these classes, the last batch filled up; of several ranks one's share."""
    targets = np.asarray(targets, np.int64)
    count = len(targets)
    store = Arrays("x", np.zeros((count, 1, 1), np.uint8))
    source = Source(store, np.arange(count), targets, tuple(labels))
    batches = []
    for start in range(0, count, batch * ranks):
        index = torch.arange(start + rank * batch, start + (rank + 1) * batch)
        rows = index.clamp(max=count - 1)
        images = torch.zeros(batch, 3, 1, 1, dtype=torch.uint8)
        images[:, 0, 0, 0] = (rows % 256).to(torch.uint8)
        images[:, 1, 0, 0] = (rows // 256).to(torch.uint8)
        batches.append(Batch(images, torch.from_numpy(targets)[rows], index < count, rows))
    return Part(source, batches)


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
