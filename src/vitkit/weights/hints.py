"""Settings of a model that a user may override."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitkit.data.images.preprocessing import Interpolation
from vitkit.system.errors import BadSettings

Pool = Literal["token", "gap", "corner"]
Statistics = Literal["imagenet", "half", "clip"]
Crop = Literal["centre", "whole", "native"]
MOST_TOKENS = 16_384  # of an image: 2,048 pixels a side with patches of 16
LARGEST_SIDE = 16384  # pixels of an image's side, as positions of more patches do not fit in memory


@dataclass(frozen=True)
class Hints:
    """Settings of a model that its file does not contain, or that the user wants to change. Each field is
    documented in `Overrides`, the keyword arguments of the public functions."""

    image: tuple[int, int] | tuple[()] = ()
    stride: int | tuple[int, int] | None = None
    channels: int | None = None
    heads: int | None = None
    pool: Pool | None = None
    statistics: Statistics | None = None
    resize: int | None = None
    crop: Crop | None = None
    tokens: int | None = None
    interpolation: Interpolation | None = None
    part: str | None = None
    labels: Path | None = None

    def __post_init__(self):
        given: object = self.image
        if isinstance(given, int):
            given = (given,)
        if not isinstance(given, tuple | list):
            raise BadSettings(
                f"the size of images is {given!r}; give one side in pixels, or height and width"
            )
        image = tuple(given)
        if len(image) == 1:
            image *= 2
        if len(image) not in (0, 2) or any(side < 1 for side in image):
            raise BadSettings(
                f"the size of images is {image}; give one side in pixels, or height and width"
            )
        if image and max(image) > LARGEST_SIDE:
            raise BadSettings(
                f"the size of images is {image}; a side has at most {LARGEST_SIDE:,} pixels"
            )
        self._check_stride()
        if self.channels is not None and self.channels < 1:
            raise BadSettings(f"`channels` is {self.channels}; it must be at least 1")
        if self.heads is not None and self.heads < 1:
            raise BadSettings(f"`heads` is {self.heads}; it must be at least 1")
        if self.crop in ("whole", "native") and self.resize:
            raise BadSettings(
                f'resize is {self.resize}, but nothing is cropped if crop is "{self.crop}"; leave out '
                "one of the two"
            )
        self._check_tokens()
        if self.part is not None and not isinstance(self.part, str):
            raise BadSettings(
                f"`part` is {self.part!r}; give the name of a part of the file, as text"
            )
        object.__setattr__(self, "image", image)

    def _check_tokens(self) -> None:
        """Raise VitkitError for an invalid number of patches, and for one together with a crop."""
        if self.tokens is None:
            return
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise BadSettings(
                f"`tokens` is {self.tokens}; it is a number of patches, from 1 to {MOST_TOKENS:,}"
            )
        if self.crop not in (None, "native") or self.resize:
            raise BadSettings(
                f"`tokens` is {self.tokens}, which is for images in their own aspect ratios; leave out crop "
                "and resize, which crop them"
            )

    def _check_stride(self) -> None:
        """Raise VitkitError unless the stride is a number of pixels or a pair of them."""
        stride: object = self.stride
        if stride is None:
            return
        sides = stride if isinstance(stride, tuple | list) else (stride, stride)
        if len(sides) != 2 or any(not isinstance(side, int) or side < 1 for side in sides):
            raise BadSettings(
                f"`stride` is {stride!r}; it is a number of pixels, at least 1, or two: down and across"
            )
        if isinstance(stride, list):  # from JSON
            object.__setattr__(self, "stride", tuple(stride))


CREATE = ("image", "stride", "channels", "heads")
"""The hints that are settings of `create`; the others belong to `load` only."""
