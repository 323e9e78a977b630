"""The pass over images that all evaluators share: `collect` goes through the batches, then `summed`
or `concatenated` puts together what it gives.

Every example counts exactly once, whatever the size of a batch and the number of ranks.

Legend: B examples of a batch, N of all batches.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise

import torch
from torch import Tensor, nn

from vitkit.data import Batch
from vitkit.system.processes.ranks import from_every_rank, sum_over_ranks
from vitkit.weights import evaluating

Rows = tuple[Tensor, ...]
"""Tensors (B, ...) with a row for each example of a batch."""


@torch.no_grad()  # not inference_mode: FSDP goes on training with tensors that it makes here
def collect(
    model: nn.Module,
    batches: Iterable[Batch],
    read: Callable[[Batch], Rows],
    device: torch.device | str,
) -> Iterator[Rows]:
    """Yields what `read` returns of each batch, without padding. `model` is in evaluation mode
    meanwhile, and afterwards as it was.

    `read` gets a batch on the device, with the padding rows that make batches equally large and
    equally many on all ranks, so that every rank calls the model as often as the others. Their rows
    are removed from what it returns, whatever they hold.
    """
    with evaluating(model):
        for batch in batches:
            is_full = bool(batch.real.all())
            batch = Batch(*(tensor.to(device, non_blocking=True) for tensor in batch))
            rows = read(batch)
            if not is_full:  # choosing rows waits for the device
                rows = tuple(values[batch.real] for values in rows)
            yield rows


def summed(parts: Iterable[Rows]) -> tuple[list[Tensor], int]:
    """The sums of rows over all examples of all ranks: float64 tensors of a row's shape; and the
    number of examples.

    Raises ValueError if there are none.
    """
    totals: list[Tensor] = []
    seen = torch.zeros((), dtype=torch.int64)
    for rows in _one_behind(parts):
        seen += len(rows[0])
        sums = [values.cpu().double().sum(0) for values in rows]  # not every device has float64
        if totals:
            sums = [total + more for total, more in zip(totals, sums, strict=True)]
        totals = sums
    if not sum_over_ranks(seen):
        raise ValueError("there is no image to evaluate on")
    return [sum_over_ranks(total) for total in totals], int(seen)


def concatenated(parts: Iterable[Rows]) -> list[Tensor]:
    """The rows of all examples of all ranks: tensors (N, ...) on the CPU.

    Raises ValueError if there are none.
    """
    # This rank's batches, then all ranks: (rows of a, rows of b), ... -> all of a, all of b
    batches = []
    for rows in _one_behind(parts):
        batches.append([values.cpu() for values in rows])
    own = [torch.cat(values) for values in zip(*batches, strict=True)]
    everyone = from_every_rank(own)
    joined = [torch.cat(values) for values in zip(*everyone, strict=True)]
    if not joined or not len(joined[0]):
        raise ValueError("there is no image to evaluate on")
    return joined


def _one_behind(parts: Iterable[Rows]) -> Iterator[Rows]:
    """The same parts, each after the next one has begun: while one is brought to the CPU, the device
    computes the next."""
    for rows, _ in pairwise(chain(parts, [None])):
        yield rows
