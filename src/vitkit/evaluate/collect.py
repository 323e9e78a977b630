"""The one pass over images that all evaluators share.

Every example counts exactly once, whatever the size of a batch and the number of ranks. A model is
in evaluation mode for the pass, and afterwards as it was.

Legend: B examples of a batch, N of all batches.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from vitkit.data import Batch
from vitkit.system.ranks import from_every_rank, sum_over_ranks
from vitkit.weights.classifier import evaluating

Rows = tuple[Tensor, ...]


@torch.no_grad()  # not inference_mode: FSDP trains on with memory that it takes here
def collect(
    model: nn.Module,
    batches: Iterable[Batch],
    read: Callable[[Batch], Rows],
    device: torch.device | str,
) -> Iterator[Rows]:
    """What `read` says of the examples of each batch: tensors (B, ...), with a row an example, on
    the device.

    `read` gets the batch on the device, padding rows among its examples: every rank must call the
    model as often as the others, on batches of one size. Those rows are left out of what it
    returns, whatever they hold.
    """
    with evaluating(model):
        for batch in batches:
            batch = Batch(*(tensor.to(device, non_blocking=True) for tensor in batch))
            yield tuple(rows[batch.real] for rows in read(batch))


def summed(parts: Iterable[Rows]) -> tuple[list[Tensor], int]:
    """The sums of a pass over its examples, of all ranks: float64 tensors of a row's shape; and how
    many examples there were.

    Raises ValueError when there were none.
    """
    totals = None
    seen = torch.zeros((), dtype=torch.int64)
    for rows in parts:
        seen += len(rows[0])
        sums = [values.cpu().double().sum(0) for values in rows]  # not every device has float64
        totals = sums if totals is None else [a + b for a, b in zip(totals, sums, strict=True)]
    if not sum_over_ranks(seen):
        raise ValueError("there is no image to evaluate on")
    return [sum_over_ranks(total) for total in totals], int(seen)


def concatenated(parts: Iterable[Rows]) -> list[Tensor]:
    """The rows of a pass, of all ranks: tensors (N, ...) on the CPU.

    Raises ValueError when there were none.
    """
    batches = [[values.cpu() for values in rows] for rows in parts]
    own = [torch.cat(values) for values in zip(*batches, strict=True)]
    everyone = from_every_rank(own)
    rows = [torch.cat(values) for values in zip(*everyone, strict=True)]
    if not rows or not len(rows[0]):
        raise ValueError("there is no image to evaluate on")
    return rows
