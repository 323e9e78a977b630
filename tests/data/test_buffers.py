"""Memory that workers fill is used again once its batch is copied out, and never before."""

import gc
import itertools
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from vitkit.data import forked
from vitkit.data.loading.resident import MemoryLayout, batches_in_order
from vitkit.data.loading.workers import AHEAD

SHAPE = (5, 3, 8, 8)
LAYOUT = MemoryLayout(SHAPE, torch.uint8)


class Numbered(NamedTuple):
    images: torch.Tensor
    number: torch.Tensor
    buffer: torch.Tensor


def fill(images, item):
    """A batch that is full of its item, and says where a worker wrote it."""
    images.fill_(item)
    return Numbered(images, torch.tensor([item]), torch.tensor([images.data_ptr()]))


def fill_slowly(images, item):
    """Row by row, so that a batch that is handed on too early has rows of another."""
    for row in images:
        row.fill_(item)
        time.sleep(1e-4)
    return Numbered(images, torch.tensor([item]), torch.tensor([images.data_ptr()]))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("function", [fill, fill_slowly])
def test_batches_that_are_held_keep_what_is_in_them(workers, function):
    held = list(batches_in_order(function, range(40), workers, LAYOUT))
    assert [batch.number.item() for batch in held] == list(range(40))
    for item, batch in enumerate(held):
        assert batch.images.shape == SHAPE and (batch.images == item).all()
        assert batch.images.dtype == torch.uint8


@pytest.mark.skipif(not forked(), reason="workers inherit no memory on this system")
def test_workers_write_into_a_few_buffers_again_and_again():
    batches = batches_in_order(fill, itertools.count(), 2, LAYOUT)
    buffers = [batch.buffer.item() for batch in itertools.islice(batches, 30)]
    batches.close()
    assert len(set(buffers)) == 2 * AHEAD + 1
    assert buffers[: 2 * AHEAD + 1] * 2 == buffers[: 4 * AHEAD + 2]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_the_memory_is_given_back_when_the_batches_end():
    gc.disable()  # not only when cycles are looked for
    try:
        before = shared_bytes()
        batches = batches_in_order(
            fill, itertools.count(), 2, MemoryLayout((64, 3, 64, 64), torch.uint8)
        )
        next(batches)
        assert shared_bytes() - before >= 5 * 64 * 3 * 64 * 64
        batches.close()
        assert shared_bytes() - before < 64 * 3 * 64 * 64
    finally:
        gc.enable()


def shared_bytes():
    """How much anonymous memory this process shares with its children."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, *rest = line.split()
        start, end = (int(number, 16) for number in span.split("-"))
        if mode.endswith("s") and rest[-1] in ("/dev/zero", "(deleted)"):
            total += end - start
    return total
