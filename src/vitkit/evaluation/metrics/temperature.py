"""The temperature: one number that all logits are divided by, so that probabilities are right (Guo
et al. 2017, "On Calibration of Modern Neural Networks").

It changes no order, and so no accuracy. Logits that it is fitted on must be answers to images that
the model has not learned from: held-out ones, or each left out in turn.

Legend: N images, K classes.
"""

import torch
from torch import Tensor

STEPS = 60  # far more than Newton's method takes
COLDEST = 1e-6
HOTTEST = 1e6  # bounds of what is returned, in units of the logits' spread


def fit_temperature(logits: Tensor, classes: Tensor, start: float | None = None) -> float:
    """The temperature T at which softmax(logits / T) fits the true classes best: (N, K), int64 (N,)
    -> T.

    What is minimised is the cross-entropy, which is convex in 1 / T. As in Platt scaling the true
    class counts (N + 1) / (N + 2), not 1: otherwise T would be 0 if every answer is right. The rest
    counts for the likeliest of the other classes; spread over a thousand, most of it would be where
    no answer ever is, and T too large. If the answers are no better than chance, T is so large that
    all classes are equally likely.

    start: a temperature that may be near. Raises ValueError for logits that are not finite, or
    have fewer than two classes.
    """
    count, outputs = logits.shape
    if not count or outputs < 2:
        raise ValueError(
            f"a temperature is fitted on answers of two classes or more, not {outputs}"
        )
    z = logits.double()
    if not z.isfinite().all():
        raise ValueError("the logits hold NaN or infinity, so no temperature fits them")
    spread = z.std(correction=0).item() or 1.0
    z = (z - z.mean(1, keepdim=True)) / spread  # (N, K), of any size before, of size 1 now

    # What the targets, (N + 1) / (N + 2) for the true class and the rest for the next, expect
    wrong = 1 / (count + 2)
    true = z.gather(1, classes[:, None])[:, 0]  # (N,)
    next_likely = z.scatter(1, classes[:, None], -torch.inf).amax(1)  # (N,)
    expected = ((1 - wrong) * true + wrong * next_likely).mean()

    # The zero of the gradient, which grows with b = 1 / T: Newton's method within a bracket
    low, high = 1 / HOTTEST, 1 / COLDEST
    b = 1.0
    if start is not None:
        b = min(max(spread / start, low), high)
    for _ in range(STEPS):
        p = (b * z).softmax(1)
        mean = (p * z).sum(1)  # (N,)
        gradient = (mean.mean() - expected).item()
        if gradient > 0:
            high = b
        else:
            low = b
        curvature = ((p * z * z).sum(1) - mean.square()).mean().item()
        before = b
        b = b - gradient / max(curvature, 1e-300)
        if not low < b < high:
            b = (low * high) ** 0.5
        if abs(b - before) <= 1e-9 * b:
            break
    return spread / b
