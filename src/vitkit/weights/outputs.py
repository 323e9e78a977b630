"""Meaning of a head's outputs: probabilities of classes, and names of the classes.

Legend: B batch, K classes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor  # not imported for predictions of exported files

Activation = Literal["softmax", "sigmoid", "none"]
# Two classes of Google's ImageNet-21k that the original does not have
ONLY_GOOGLES = ("n03931044", "n09859684")


def activate(logits: "Tensor", activation: Activation) -> "Tensor":
    """Logits (B, K) -> probabilities (B, K), or the logits themselves for "none"."""
    if activation == "softmax":
        return logits.softmax(-1)
    if activation == "sigmoid":
        return logits.sigmoid()
    return logits


def activate_array(logits: np.ndarray, activation: Activation) -> np.ndarray:
    """`activate` for arrays: float32 (B, K) -> float32 (B, K)."""
    if activation == "none":
        return logits
    if activation == "sigmoid":
        # exp of a number that is not positive never overflows
        small = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1 / (1 + small), small / (1 + small))
    with np.errstate(invalid="ignore"):  # infinite logits become NaN, which the caller detects
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


def numbered(classes: int) -> tuple[str, ...]:
    """Names for classes without names: "0", "1", ..."""
    return tuple(map(str, range(classes)))


def counted_classes(classes: int) -> str:
    """The number of classes as text: "1 class", "1,000 classes"."""
    if classes == 1:
        return "1 class"
    return f"{classes:,} classes"


def imagenet_labels() -> tuple[str, ...]:
    """The unique names of ImageNet-1k's classes, in the order of every published model.

    Names of several classes ("crane") have an explanation. They are stored in a file here, because
    importing a library that has such a list takes longer than a prediction.
    """
    return tuple(Path(__file__).with_name("imagenet_classes.txt").read_text("utf-8").splitlines())


def imagenet21k_wordnet(classes: int = 21_843) -> tuple[str, ...]:
    """WordNet's ids of ImageNet-21k's classes in ascending order: Google's 21,843, or the original 21,841."""
    names = tuple(Path(__file__).with_name("imagenet21k_wordnet.txt").read_text().split())
    if classes == 21_841:
        names = tuple(name for name in names if name not in ONLY_GOOGLES)
    return names


def usual_labels(classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The assumed names for a head with this many classes, and a note: ImageNet-1k's for 1,000, WordNet's
    ids of ImageNet-21k for 21,841 and 21,843; otherwise None."""
    if classes == 1000:
        labels = imagenet_labels()
        return labels, ["labels: ImageNet-1k's 1,000 classes; the file does not state them"]
    if classes in (21_841, 21_843):
        note = (
            f"labels: ImageNet-21k's {classes:,} classes by WordNet's names, in their order; the file "
            "does not state them"
        )
        return imagenet21k_wordnet(classes), [note]
    return None, []
