"""The type of images that callers pass to the public functions."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor

    ImageLike = str | Path | bytes | Image | np.ndarray | Tensor | Iterable[Any]
    """An image or several: a file, a folder, a pattern, a web address, a data set, encoded bytes, a
    Pillow image, an array or a tensor."""
else:  # signatures must not import PyTorch
    ImageLike = Annotated[Any, "IMAGE"]
