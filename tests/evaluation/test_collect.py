"""The pass over images that evaluators share: it leaves out padding, computes no gradient, and
leaves the model as it was."""

import pytest
import torch
from torch import nn

from vitkit.data import Batch
from vitkit.evaluation import collect, summed
from vitkit.evaluation.evaluator import concatenated


def batches(count, size):
    for start in range(0, count, size):
        index = torch.arange(start, start + size)
        yield Batch(index[:, None].float(), index, index < count, index)


@pytest.mark.parametrize("size", [1, 4, 7, 16])
def test_each_example_is_read_once(size):
    model = nn.Linear(1, 1).train()

    def read(batch):
        assert not model.training and len(batch.images) == size
        return batch.images[:, 0] ** 2, model(batch.images)

    (squares, outputs), seen = summed(collect(model, batches(7, size), read, "cpu"))
    assert (seen, squares.item()) == (7, sum(i * i for i in range(7)))
    assert outputs.shape == (1,) and not outputs.requires_grad
    images, outputs = concatenated(collect(model, batches(7, size), read, "cpu"))
    assert images.tolist() == [i * i for i in range(7)] and outputs.shape == (7, 1)
    assert model.training and torch.is_grad_enabled()


def test_the_model_comes_back_from_an_error_too():
    model = nn.Linear(1, 1).train()

    def read(batch):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        summed(collect(model, batches(3, 2), read, "cpu"))
    assert model.training and torch.is_grad_enabled()
    for join in (summed, concatenated):
        with pytest.raises(ValueError, match="no image to evaluate on"):
            join(collect(model, [], read, "cpu"))
