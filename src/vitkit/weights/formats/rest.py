"""Pixels that whole patches do not cover: a model for images of 384 pixels with patches of 14 ignores the
last 6 of them."""

from dataclasses import replace

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig


def without_rest(
    preprocessing: Preprocessing, config: ViTConfig, library: str
) -> tuple[Preprocessing, list[str]]:
    """The preprocessing for the part of an image that patches cover, and a note if that is not all of it, as
    for SigLIP's so400m. library: name of the library that the preprocessing comes from."""
    height, width = preprocessing.size
    down, across = config.tiling.size
    size = (height // down * down, width // across * across)
    if size == preprocessing.size or 0 in size or config.tiling.overlaps:
        return preprocessing, []
    note = (
        f"preprocessing: patches of {config.patch} do not cover {height - size[0]} of {height} pixels, "
        f"in {library} those at the right and bottom; here half of them at each side"
    )
    resize = preprocessing.resize or max(preprocessing.size)
    return replace(preprocessing, size=size, resize=resize), [note]
