"""Prepared images in batches that are small enough for the attention of one layer.

Legend: B batch, H heads, T tokens.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.weights import Classifier

Images = Tensor | Iterable[Tensor]
"""Prepared images, uint8 (B, 3, H, W), or any number of such batches, one after the other."""

LARGEST = 128 * 2**20  # bytes of the attention weights of one layer
MOST = 16  # images at a time; larger batches are not faster on a CPU


def small_batches(classifier: Classifier, images: Images) -> Iterator[Tensor]:
    """The same images, uint8 (B, 3, H, W), with B so small that a layer's weights fit into LARGEST.

    Raises ValueError if there are none, and for what is no batch of prepared images.
    """
    batches = images
    if isinstance(images, Tensor):
        batches = [images]
    seen = 0
    for batch in batches:
        _check_batch(batch)
        seen += len(batch)
        yield from batch.split(_images_at_a_time(classifier, batch))
    if not seen:
        raise ValueError("there are no images to look at")


def _images_at_a_time(classifier: Classifier, batch: Tensor) -> int:
    """How many images of this size are computed at a time: from 1 to MOST."""
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        return MOST
    rows, columns = classifier.model.grid(batch)
    tokens = config.prefix + rows * columns
    weights = 4 * config.heads * tokens**2  # bytes of one image's, in float32
    return min(max(LARGEST // weights, 1), MOST)


def _check_batch(batch: object) -> None:
    """Raises ValueError for what is no batch of images."""
    if not isinstance(batch, Tensor) or batch.ndim != 4:
        given = type(batch).__name__
        if isinstance(batch, Tensor):
            given = f"{batch.dtype} of shape {tuple(batch.shape)}"
        raise ValueError(
            f"got {given}; expected prepared images, uint8 (B, 3, h, w), as classifier.batch(...) "
            "makes them"
        )


def class_numbers(target: int | Tensor, count: int, classes: int) -> Tensor:
    """The class of each of `count` images, int64 (count,) on the CPU, from one class or one for each
    image. Raises ValueError for classes that are not there."""
    chosen = torch.as_tensor(target).cpu().expand(count).long()
    if chosen.min() < 0 or chosen.max() >= classes:
        raise ValueError(
            f"target is {target}; the model's {classes} classes are numbered 0 to {classes - 1}"
        )
    return chosen
