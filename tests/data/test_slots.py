"""Memory that workers fill is used again when nobody looks into it, and never before."""

import itertools
from typing import NamedTuple

import pytest
import torch

from vitkit.data.engine.slots import SPARE, Slots, in_slots
from vitkit.data.engine.workers import forked

needs_fork = pytest.mark.skipif(not forked(), reason="workers inherit no memory on this system")


class Numbered(NamedTuple):
    images: torch.Tensor
    number: torch.Tensor


class Numbers:
    """Batches that are full of their step."""

    def fill(self, images: torch.Tensor, step: int) -> Numbered:
        return Numbered(images.fill_(step), torch.tensor(step))


def test_a_piece_is_free_when_the_last_look_into_it_is_gone():
    slots = Slots((2, 3), 2)
    first, second = slots.take(), slots.take()
    assert slots.take() is None and {first, second} == {0, 1}
    images = slots.hand_out(first)
    row, array = images[0], images.numpy()[1:]
    slots.open(first).fill_(7)
    assert (images == 7).all() and not slots.hand_out(second).any()
    assert slots.free == [second]
    del images
    assert slots.free == [second]
    del row
    assert slots.free == [second] and (array == 7).all()
    del array
    assert slots.free == [second, first]


def test_memory_outlives_the_slots():
    images = Slots((4,), 1).hand_out(0)
    assert images.fill_(3).tolist() == [3] * 4


@needs_fork
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_that_are_held_keep_what_is_in_them(workers):
    found = list(in_slots(Numbers(), range(40), workers, 2, (5, 3)))
    assert all(
        (batch.images == step).all() and batch.number == step for step, batch in enumerate(found)
    )


@needs_fork
def test_batches_that_are_let_go_share_a_few_pieces():
    places, kept = set(), []
    for step, batch in enumerate(in_slots(Numbers(), range(60), 2, 2, (5, 3))):
        places.add(batch.images.data_ptr())
        assert (batch.images == step).all()
        kept += [batch.images[1]] if step == 10 else []
    assert len(places) <= 2 * 2 + SPARE
    assert kept[0].tolist() == [10] * 3


@needs_fork
def test_they_may_go_on_for_ever_and_be_left_at_any_time():
    batches = in_slots(Numbers(), Forever(), 2, 2, (5, 3))
    assert [int(batch.number) for batch in itertools.islice(batches, 9)] == list(range(9))
    batches.close()


class Forever:
    def __iter__(self):
        return itertools.count()
