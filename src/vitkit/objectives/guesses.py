"""How well a learner guesses the hidden parts of held-out images, beside the best answer that does not look.

Legend: B batch, C channels, M hidden patches of an image, V values of each: one or more classes, or numbers.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Batch
from vitkit.system.ranks import sum_over_ranks


def cross_entropies(predicted: Tensor, targets: Tensor) -> Tensor:
    """(B, M, V·classes) and int64 (B, M) or (B, M, V) -> the cross-entropy of each, in the targets' shape."""
    logits = answers(predicted, targets).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)


def guesses(predicted: Tensor, targets: Tensor) -> Tensor:
    """The likeliest classes, in the targets' shape."""
    return answers(predicted, targets).argmax(-1)


def answers(predicted: Tensor, targets: Tensor) -> Tensor:
    """(B, M, V·classes) -> (*targets.shape, classes), also where B is 0: a rank's share may be all padding."""
    return predicted.unflatten(-1, (*targets.shape[2:], -1))


def measured(
    batches: Iterable[Batch], normalise: Callable[[Tensor], Tensor], place: torch.device | str
) -> Callable[[nn.Module], Iterator[tuple[str, float]]]:
    """An evaluator of learners with `asked` and `losses`: loss, `baseline`, accuracy (of classes) and `seen`.

    Every time the same parts are hidden. The baseline is the loss of the best answer that is always the same: the entropy of
    the classes that were to be guessed, or the variance of the numbers; where V are guessed at once, their mean. Raises
    ValueError when there is nothing to evaluate on.
    """

    @torch.no_grad()  # not inference_mode: FSDP trains on with memory that it takes here
    def run(learner: nn.Module) -> Iterator[tuple[str, float]]:
        total, marginal, training = torch.zeros(3, dtype=torch.float64), 0, learner.training
        learner.eval()
        try:
            for batch in batches:
                real = batch.real.to(place)
                images = normalise(batch.images.to(place, non_blocking=True))[real]
                predicted, targets = learner.asked(images, batch.indices.to(place)[real])
                losses, numbers = learner.losses(predicted, targets), targets.is_floating_point()
                right = (
                    torch.zeros_like(losses) if numbers else guesses(predicted, targets) == targets
                )
                # sums in float64 are the CPU's: not every device has it
                rows = [
                    values.float().flatten(1).mean(1).cpu().double().sum()
                    for values in (losses, right)
                ]
                total += torch.stack([*rows, real.sum().cpu()])
                marginal = marginal + (
                    _moments(targets) if numbers else _counts(targets, predicted)
                )
        finally:
            learner.train(training)
        loss, right, seen = sum_over_ranks(total).tolist()
        if not seen:
            raise ValueError("there is no image to evaluate on")
        yield "loss", loss / seen
        marginal = sum_over_ranks(marginal)
        if numbers:
            first, second = marginal[1:] / marginal[0]
            yield "baseline", (second - first**2).mean().item()
        else:
            yield (
                "baseline",
                torch.special.entr(marginal / marginal.sum(-1, keepdim=True)).sum(-1).mean().item(),
            )
            yield "accuracy", right / seen
        yield "seen", int(seen)

    return run


def _moments(targets: Tensor) -> Tensor:
    """(B, M, V) -> float64 (3, V): count, sum, sum of squares."""
    x = targets.flatten(0, 1)
    return torch.stack([torch.ones_like(x).sum(0), x.sum(0), (x * x).sum(0)]).cpu().double()


def _counts(targets: Tensor, predicted: Tensor) -> Tensor:
    """(B, M) or (B, M, V) -> float64 (V, classes): how often each class was to be guessed at each place."""
    x = targets.flatten(0, 1).view(
        targets.shape[0] * targets.shape[1], *targets.shape[2:] or (1,)
    )  # (B M, V)
    classes = predicted.shape[-1] // x.shape[1]
    places = x + torch.arange(x.shape[1], device=x.device) * classes
    return (
        places.flatten().bincount(minlength=x.shape[1] * classes).view(-1, classes).cpu().double()
    )
