"""Ties: two classes that a model gives the same probability, to the precision of its arithmetic.

Two runtimes that compute the same model round differently, so they may answer with different classes of a
tie. Such answers say nothing about whether the runtimes agree.

Legend: N images, K classes.
"""

import numpy as np

TIED = 1e-5
"""Largest relative difference of two probabilities that float32 cannot distinguish."""


def tied_answers(
    probabilities: np.ndarray, answers: np.ndarray, tolerance: float = TIED
) -> np.ndarray:
    """Find the answers that differ from a model's own only because of a tie.

    Args:
        probabilities: The model's probabilities, (N, K).
        answers: Classes answered by another runtime, as indices, (N,).
        tolerance: Largest relative difference of the probabilities of two classes that makes them a tie.

    Returns:
        Whether each answer differs from the model's most likely class although the model gives both
        classes the same probability, to the tolerance: bool (N,).
    """
    rows = np.arange(len(probabilities))
    likeliest = probabilities.argmax(-1)
    highest = probabilities[rows, likeliest]
    margin = highest - probabilities[rows, answers]
    return (answers != likeliest) & (margin <= tolerance * np.abs(highest))
