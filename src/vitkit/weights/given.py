"""Arguments of public functions: a model, and overrides of its settings."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from vitkit.data.images.preprocessing import Interpolation
from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.system.functions.arguments import name_of
from vitkit.system.functions.steps import DATA, step
from vitkit.system.functions.types import CONVERTED, Messages, PathLike, Several
from vitkit.weights.hints import Crop, Hints, Pool, Statistics

if TYPE_CHECKING:
    from vitkit.system.functions.results import ModelResult
    from vitkit.weights.classifier import Classifier

if TYPE_CHECKING and not CONVERTED:
    ModelLike: TypeAlias = str | Path | Classifier | ModelResult
    """A model: a run, a model directory, a file of weights, the name of a published model, what
    `vitkit.load` returns, or a result that made one. The body gets a str or a Classifier."""
elif TYPE_CHECKING:
    ModelLike: TypeAlias = str | Classifier
else:  # no PyTorch for a signature
    ModelLike = Annotated[Any, "MODEL"]


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
    for 12 bands. Weights for colours are adapted: summed for grey, repeated for more channels.
    Default: the model's own."""
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
    """The overrides as a checked value. Raises BadSettings for one that no model supports."""
    names = {field.name for field in fields(Hints)}
    return Hints(**{name: value for name, value in overrides.items() if name in names})


def classifier_of(model: "str | Classifier", hints: Hints) -> "Classifier":
    """The classifier of a model that is given by name or as an object. Raises WrongArgument for anything
    else, and VitkitError if there are hints for a model that is already loaded."""
    from vitkit.weights.classifier import Classifier
    from vitkit.weights.store import load_as

    if isinstance(model, Classifier):
        if hints != Hints():
            raise BadSettings(
                "this model is already loaded, so settings for its file (such as its image size, pooling or "
                "labels) have no effect; give them to vitkit.load"
            )
        return model
    if not isinstance(model, str | Path):
        raise WrongArgument(
            f"model is of type {type(model).__name__}; it is a name, a path, or what vitkit.load returns"
        )
    return load_as(model, hints)


def classifier_with_head(model: "str | Classifier", hints: Hints) -> "Classifier":
    """The classifier of a model, see `classifier_of`. Raises VitkitError for one that has no classes, or that
    predicts the same ones for every image."""
    from vitkit.weights.classifier import no_answer

    classifier = classifier_of(model, hints)
    if reason := no_answer(classifier):
        raise BadSettings(f"{name_of(model)}: {reason}; {step('finetune', model, DATA)} trains one")
    return classifier
