"""Which images of a data set deserve a second look: labels that are probably wrong, and images
unlike all others.

Labels are judged by the closed-form probe: what a fit without an image says of it. One
decomposition gives the answers for all images, and nothing is trained.

Legend: N images, D width of the features, K classes.
"""

from typing import NamedTuple

import numpy as np

NEIGHBOURS = 10  # whose mean distance says how unlike others an image is
FAR = 4.0  # robust standard deviations from which a value is unusual
AT_ONCE = 1 << 26  # similarities that are computed at once


class Suspect(NamedTuple):
    """An image whose label is probably wrong."""

    index: int
    answer: int
    """The class that the other images make of it."""
    probability: float
    """Of that class."""
    own: float
    """Of the class that it is labelled with."""


def label_suspects(probabilities: np.ndarray, classes: np.ndarray) -> list[Suspect]:
    """Images that are confidently of another class than their label, the surest first.

    probabilities: (N, K), of each image by a fit without it. classes: (N,), the labels.

    Confidently is meant as in confident learning (Northcutt and others, 2021): the probability of
    the other class is at least the mean that the images with that label have. It must also be
    likelier than all other classes together: where the model knows little, it accuses nobody.
    """
    count = probabilities.shape[1]
    own = probabilities[np.arange(len(classes)), classes]  # (N,)

    # What an image of each class usually gets; nothing reaches the bar of a class without images
    bars = np.full(count, np.inf)
    for k in np.unique(classes):
        bars[k] = own[classes == k].mean()

    # Whose likeliest class is another one, and reaches its bar
    answers = probabilities.argmax(1)
    highest = probabilities.max(1)
    is_suspect = (answers != classes) & (highest >= bars[answers]) & (highest > 0.5)
    suspects = []
    for i in np.flatnonzero(is_suspect).tolist():
        answer = int(answers[i])
        suspects.append(Suspect(i, answer, float(probabilities[i, answer]), float(own[i])))
    return sorted(suspects, key=lambda suspect: suspect.own - suspect.probability)


def outliers(x: np.ndarray) -> list[tuple[int, float]]:
    """Images that are unlike all others, the most unlike first, with how far: features (N, D) ->
    indices, and robust standard deviations of the mean cosine distance to the NEIGHBOURS nearest.
    """
    count = len(x)
    neighbours = min(NEIGHBOURS, count - 1)
    if neighbours < 1:
        return []
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    rows = (x / np.maximum(lengths, 1e-12)).astype(np.float32)
    distances = np.empty(count)
    block = max(1, AT_ONCE // count)
    for start in range(0, count, block):
        similarities = rows[start : start + block] @ rows.T  # (block, N)
        here = np.arange(len(similarities))
        similarities[here, start + here] = -np.inf  # itself
        nearest = np.partition(similarities, -neighbours, axis=1)[:, -neighbours:]
        distances[start : start + block] = 1 - nearest.mean(1)
    deviations = robust_deviations(distances)
    far = np.flatnonzero(deviations > FAR)
    order = far[np.argsort(-deviations[far], kind="stable")]
    return [(i, float(deviations[i])) for i in order.tolist()]


def robust_deviations(values: np.ndarray) -> np.ndarray:
    """How many standard deviations each value is from the median, (N,); the standard deviation is
    that of the values' middle half, which a few odd ones do not change. Infinite for a value that
    differs where at least half are the same."""
    centred = values - np.median(values)
    spread = 1.4826 * np.median(np.abs(centred))
    if spread == 0:
        odd = np.where(centred > 0, np.inf, -np.inf)
        return np.where(centred == 0, 0.0, odd)
    return centred / spread


def unusual_looks(
    sizes: np.ndarray,
    thumbnails: np.ndarray,
    sharpness: np.ndarray,
    stretched: np.ndarray | None = None,
) -> dict[int, str]:
    """Images that look otherwise than the others, by index, with what is unusual: dark, pale,
    empty, blurred, of another size or shape.

    sizes: (N, 2), height and width. thumbnails: uint8 (N, 8, 8, 3). sharpness and stretched: (N,), as
    `curate.Survey` has them; the light of a stretched image is not judged. Each is compared with the
    other images: among X-rays nothing is dark.
    """
    found: dict[int, list[str]] = {}

    def note(flagged: np.ndarray, text: str) -> None:
        for i in np.flatnonzero(flagged).tolist():
            found.setdefault(i, []).append(text)

    # Light
    has_light = np.ones(len(sizes), bool)
    if stretched is not None:
        has_light = ~stretched
    light = thumbnails.mean((1, 2, 3))
    deviation = robust_deviations(light)
    note(has_light & (light < 25) & (deviation < -FAR / 2), "dark")
    note(has_light & (light > 235) & (deviation > FAR / 2), "pale")
    contrast = thumbnails.std((1, 2, 3))
    empty = (contrast < 4) & (robust_deviations(contrast) < -FAR / 2)
    note(empty, "nearly empty")

    # Sharpness, which of nothing is nothing
    blurred = robust_deviations(np.log(sharpness + 1e-6)) < -FAR
    note(blurred & ~empty, "blurred")

    # Size and shape
    pixels = sizes.prod(1).astype(float)
    ratio = pixels / np.median(pixels)
    deviation = np.abs(robust_deviations(np.log(pixels)))
    note((ratio < 1 / 4) & (deviation > FAR), "small")
    note((ratio > 16) & (deviation > FAR), "large")
    shape = np.log(sizes[:, 1] / sizes[:, 0])
    strange = np.abs(shape - np.median(shape)) > np.log(2.5)
    note(strange & (np.abs(robust_deviations(shape)) > FAR), "of another shape")
    return {i: ", ".join(texts) for i, texts in sorted(found.items())}
