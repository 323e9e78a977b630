"""What a user may say of a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitkit.data import Interpolation
from vitkit.system.errors import BadSettings

Pool = Literal["token", "gap", "corner"]
Statistics = Literal["imagenet", "half", "clip"]
Crop = Literal["centre", "whole", "native"]
MOST_TOKENS = 16_384  # of an image: 2,048 pixels a side in patches of 16
LARGEST_SIDE = 16384  # pixels of an image's side; positions of so many patches fit into no memory


@dataclass(frozen=True)
class Hints:
    """What the user says about a model, because its file does not say it or the user wants
    something else."""

    image: tuple[int, ...] = ()
    """Height and width of the images in pixels, or one side of a square. If the position table fits
    this size, it is used as it is; otherwise it is resampled to this size. Default: the size that
    the file gives, or that of a square table."""
    stride: int | tuple[int, ...] | None = None
    """Pixels from one patch to the next, for overlapping patches, such as 8 for patches of 16: four
    times as many tokens, with the same projection and resampled positions. Two numbers are down and
    across. Default: the model's own, which for published models is the patch size."""
    channels: int | None = None
    """Channels of the images, if they are not red, green and blue: 1 for grey, 4 with opacity, 12
    for 12 bands. Weights for colours are adapted: summed for grey, repeated for more channels.
    Default: the model's own."""
    heads: int | None = None
    """Number of attention heads, if the file does not say it. Default: that of the published model
    of the same width."""
    pool: Pool | None = None
    """What the head reads, if the file does not say: the class token, the mean of the patches, or
    the first patch (big_vision's pool_type "0"). Default: what such files usually mean."""
    statistics: Statistics | None = None
    """Mean and standard deviation by which images are normalised: ImageNet's (DeiT, MAE, DINO,
    torchvision), 0.5, or CLIP's. Default: the file's, or a guess, which is printed."""
    resize: int | None = None
    """Side in pixels to which images are resized before the centre is cropped, such as 256.
    Default: the file's, or the usual one."""
    crop: Crop | None = None
    """How an image gets the model's size: centre, whole or native. centre: its shorter side is
    resized, and its centre is cropped. whole: both sides are resized to the model's size, as for
    Google's models. native: nothing is cropped or stretched; the image keeps its proportions, on a
    grid with about as many patches. Default: the file's, or the usual one."""
    tokens: int | None = None
    """Approximate number of patches of an image that keeps its proportions; it implies --crop
    native. More patches than in training show smaller objects, and take longer. Default: as many as
    in training."""
    interpolation: Interpolation | None = None
    """Interpolation when images are resized. Default: the file's, or the usual one."""
    part: str | None = None
    """Part of a training checkpoint that is the model, such as model, model_ema, student or teacher:
    a key of the file, or a word of its tensors' names. encoder is the encoder without its head.
    Default: an average of weights over the training if there is one, else the only, best or first
    model; of several it is printed which was read."""
    labels: Path | None = None
    """Text file with the name of one class per line, in the order of the model's outputs.
    Default: the file's names, ImageNet-1k's for 1,000 classes, or numbers."""

    def __post_init__(self):
        image = self.image
        if isinstance(image, int):
            image = (image,)
        if not isinstance(image, tuple | list):
            raise BadSettings(
                f"the size of images is {image!r}; give one side in pixels, or height and width"
            )
        image = tuple(image)
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
                f'resize is {self.resize}, but nothing is cut out if crop is "{self.crop}"; leave out '
                "one of the two"
            )
        self._check_tokens()
        if self.part is not None and not isinstance(self.part, str):
            raise BadSettings(
                f"`part` is {self.part!r}; give the name of a part of the file, as a text"
            )
        object.__setattr__(self, "image", image)

    def _check_tokens(self) -> None:
        """Raises VitkitError for a number of patches that no image can have, or of images that are cut."""
        if self.tokens is None:
            return
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise BadSettings(
                f"`tokens` is {self.tokens}; it is a number of patches, from 1 to {MOST_TOKENS:,}"
            )
        if self.crop not in (None, "native") or self.resize:
            raise BadSettings(
                f"`tokens` is {self.tokens}, which is for images at their own proportions; leave out crop "
                "and resize, which cut them"
            )

    def _check_stride(self) -> None:
        """Raises VitkitError for a stride that is neither a number of pixels nor two."""
        stride = self.stride
        if stride is None:
            return
        sides = stride
        if not isinstance(stride, tuple | list):
            sides = (stride, stride)
        if len(sides) != 2 or any(not isinstance(side, int) or side < 1 for side in sides):
            raise BadSettings(
                f"`stride` is {stride!r}; it is a number of pixels, at least 1, or two: down and across"
            )
        if isinstance(stride, list):  # as JSON has it
            object.__setattr__(self, "stride", tuple(stride))


CREATE = ("image", "stride", "channels", "heads")
"""The hints that `create` takes as settings of a model; the others are `load`'s alone."""
