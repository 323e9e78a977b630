"""Pixels that whole patches leave out: a model for images of 384 pixels in patches of 14 does not look at the
last 6 of them."""

from dataclasses import replace

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig


def without_rest(
    preprocessing: Preprocessing, config: ViTConfig, library: str
) -> tuple[Preprocessing, list[str]]:
    """The preprocessing for the part of an image that patches cover, and a note if that is not all, as
    with SigLIP's so400m. `library` is whose preprocessing it is."""
    height, width = preprocessing.size
    down, across = config.tiling.size
    size = (height // down * down, width // across * across)
    if size == preprocessing.size or 0 in size or config.tiling.overlaps:
        return preprocessing, []
    note = (
        f"preprocessing: patches of {config.patch} leave out {height - size[0]} of {height} pixels, "
        f"in {library} those at the right and below; here half of them at each side"
    )
    resize = preprocessing.resize or max(preprocessing.size)
    return replace(preprocessing, size=size, resize=resize), [note]
