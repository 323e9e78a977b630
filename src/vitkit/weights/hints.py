"""Settings of a model that a user may override."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from vitkit.data.images.preprocessing import Interpolation
from vitkit.system.errors import BadSettings
from vitkit.system.functions.parameters import types_of
from vitkit.system.functions.types import Messages, PathLike, Several
from vitkit.system.functions.values import read_value

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
        if self.resize is not None and self.resize < 0:
            raise BadSettings(f"`resize` is {self.resize}; it is a number of pixels, or 0")
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


class Overrides(Messages, total=False):
    """What the caller says about a model, because its file does not say it or it should be something
    else; and where messages go."""

    image: Several[int]
    """Height and width of the images in pixels, or one side of a square. If the position table fits
    this size, it is used as it is; otherwise it is resampled to this size. Default: the size that
    the file gives, or that of a square table."""
    stride: int | tuple[int, ...] | None
    """Pixels from one patch to the next, for overlapping patches, such as 8 for patches of 16: four
    times as many tokens, with the same projection and resampled positions. Two numbers are down and
    across. Default: the model's own, which for published models is the patch size."""
    channels: int | None
    """Channels of the images, if they are not red, green and blue: 1 for grey, 4 with opacity, 12
    for 12 bands. Weights for colours are adapted: summed for grey, zeros for a fourth channel,
    repeated for other numbers. Default: the model's own."""
    heads: int | None
    """Number of attention heads, if the file does not say it. Default: that of the published model
    of the same width."""
    pool: Pool | None
    """What the head reads, if the file does not say: the class token, the mean of the patches, or
    the first patch (big_vision's pool_type "0"). Default: what such files usually mean."""
    statistics: Statistics | None
    """Mean and standard deviation by which images are normalised: ImageNet's (DeiT, MAE, DINO,
    torchvision), 0.5, or CLIP's. Default: the file's, or a guess, which is printed."""
    resize: int | None
    """Side in pixels to which images are resized before the centre is cropped, such as 256.
    Default: the file's, or the usual one."""
    crop: Crop | None
    """How an image gets the model's size: centre, whole or native. centre: its shorter side is
    resized, and its centre is cropped. whole: both sides are resized to the model's size, as for
    Google's models. native: nothing is cropped or stretched; the image keeps its proportions, on a
    grid with about as many patches. Default: the file's, or the usual one."""
    tokens: int | None
    """Approximate number of patches of an image that keeps its proportions; it implies
    `crop='native'`. More patches than in training show smaller objects, and take longer. Default: as many as
    in training."""
    interpolation: Interpolation | None
    """Interpolation when images are resized. Default: the file's, or the usual one."""
    part: str | None
    """Part of a training checkpoint that is the model, such as model, model_ema, student or teacher:
    a key of the file, or a word of its tensors' names. encoder is the encoder without its head.
    Default: an average of weights over the training if there is one, else the only, best or first
    model; of several it is printed which was read."""
    labels: PathLike | None
    """Text file with the name of one class per line, in the order of the model's outputs.
    Default: the file's names, ImageNet-1k's for 1,000 classes, or numbers."""


def hints_of(overrides: Mapping[str, Any]) -> Hints:
    """The overrides as a checked value; other arguments in the mapping are ignored. Raises WrongArgument for
    a value of another type, and BadSettings for one that no model supports."""
    types = types_of(Overrides)
    names = {field.name for field in fields(Hints)}
    values = {}
    for name, value in overrides.items():
        if name in names:
            values[name] = read_value(name, types[name], value)
    return Hints(**values)
