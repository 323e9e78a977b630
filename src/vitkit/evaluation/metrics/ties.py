"""Ties: two classes that a model gives the same probability, to the precision of its arithmetic.

Two runtimes that compute the same model round differently, so each may name another class of a tie. Such an
answer says nothing about whether the runtimes agree.

Legend: N images, K classes.
"""

import numpy as np

TIED = 1e-5
"""Largest difference of two probabilities, as a share of the larger, that float32 cannot tell apart."""


def tied_answers(
    probabilities: np.ndarray, answers: np.ndarray, tolerance: float = TIED
) -> np.ndarray:
    """Find the answers that differ from a model's own by a tie.

    Args:
        probabilities: The model's, (N, K).
        answers: Numbers of the classes that something else answers, (N,).
        tolerance: Largest difference of the probabilities of two classes that makes them a tie, as a share
            of the larger.

    Returns:
        Whether each answer differs from the model's most likely class although the model gives both
        classes the same probability, to the tolerance: bool (N,).
    """
    rows = np.arange(len(probabilities))
    likeliest = probabilities.argmax(-1)
    highest = probabilities[rows, likeliest]
    margin = highest - probabilities[rows, answers]
    return (answers != likeliest) & (margin <= tolerance * np.abs(highest))
