"""Accuracy: counts over batches, one division at the end; every example counts exactly once.

Legend: B batch, K classes.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Batch
from vitkit.system.ranks import sum_over_ranks

Metrics = Iterator[tuple[str, float]]


def accuracy(
    batches: Iterable[Batch],
    normalise: Callable[[Tensor], Tensor],
    device: torch.device | str = "cpu",
) -> Callable[[nn.Module], Metrics]:
    """An evaluator: called with a model of K outputs it yields top1, top5 (where K > 5), the softmax loss and `seen`.

    `normalise` is the model's Preprocessing's; rows whose `real` is False are padding and count nowhere. The model is
    put into evaluation mode and back. Where several ranks have a share of the batches each, their counts are summed.
    Raises ValueError when there is nothing to evaluate on.
    """

    @torch.no_grad()  # not inference_mode: FSDP trains on with memory that it takes here
    def run(model: nn.Module) -> Metrics:
        total, top5 = torch.zeros(4, dtype=torch.float64), False
        training = model.training
        model.eval()
        try:
            for batch in batches:
                targets, real = batch.targets.to(device), batch.real.to(device)
                logits = model(
                    normalise(batch.images.to(device, non_blocking=True))
                ).float()  # (B, K)
                top5 = logits.shape[-1] > 5
                best = logits.topk(5 if top5 else 1).indices == targets[:, None]
                loss = F.cross_entropy(logits, targets, reduction="none")
                rows = torch.stack([best[:, 0], best.any(1), loss, torch.ones_like(loss)])
                total += (
                    torch.where(real, rows, 0).cpu().double().sum(-1)
                )  # where, not times: padding may be NaN
        finally:
            model.train(training)
        right, right5, loss, seen = sum_over_ranks(total).tolist()
        if not seen:
            raise ValueError("there is no image to evaluate on")
        yield "top1", right / seen
        if top5:
            yield "top5", right5 / seen
        yield "loss", loss / seen
        yield "seen", int(seen)

    return run
