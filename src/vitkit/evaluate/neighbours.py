"""Nearest neighbours: what features are worth before any head is trained on them.

Legend: B batch, N images, D width.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Batch
from vitkit.evaluate.accuracy import Metrics
from vitkit.system.ranks import from_every_rank

NEIGHBOURS = 20
ROWS = 1024  # images that are compared with all others at once


def leave_one_out(
    batches: Iterable[Batch],
    normalise: Callable[[Tensor], Tensor],
    device: torch.device | str = "cpu",
) -> Callable[[nn.Module], Metrics]:
    """An evaluator: every image takes the label that most of its 20 nearest others have, by the cosine of their features.

    It yields neighbours/top1 and `seen`; votes are weighted by similarity, of equal ones the smallest label wins. The model
    gives one vector an image. Images that have no class are only counted.
    Raises ValueError where there are fewer than two images.
    """

    @torch.no_grad()  # not inference_mode: FSDP trains on with memory that it takes here
    def run(model: nn.Module) -> Metrics:
        features, targets, training = [], [], model.training
        model.eval()
        try:
            for batch in batches:
                found = model.features(
                    normalise(batch.images.to(device, non_blocking=True))
                ).float()
                features.append(F.normalize(found, dim=-1)[batch.real.to(device)])
                targets.append(batch.targets[batch.real].to(device))
        finally:
            model.train(training)
        shares = [from_every_rank(torch.cat(part).cpu()) for part in (features, targets)]
        x, y = (torch.cat(share).to(device) for share in shares)  # (N, D), (N,)
        if len(y) < 2:
            raise ValueError("an image needs others to be its neighbours; there are fewer than two")
        if y.dtype != torch.int64 or int(y.min()) < 0:  # no class to vote for
            yield "seen", len(x)
            return
        with torch.autocast(
            x.device.type, enabled=False
        ):  # near 1, cosines in bfloat16 are 0.004 apart
            right = sum(int(_right(x, y, start)) for start in range(0, len(x), ROWS))
        yield "neighbours/top1", right / len(x)
        yield "seen", len(x)

    return run


def _right(x: Tensor, y: Tensor, start: int) -> Tensor:
    """How many of the images from `start` on have the label that their nearest of all (N, D), (N,) vote for."""
    alike = x[start : start + ROWS] @ x.mT
    alike[:, start:].fill_diagonal_(-2)  # no image is its own neighbour
    near, which = alike.topk(min(NEIGHBOURS, len(x) - 1))
    votes = torch.zeros(len(near), int(y.max()) + 1, device=x.device).scatter_add_(
        1, y[which], near + 1
    )
    return (votes.argmax(-1) == y[start : start + ROWS]).sum()
