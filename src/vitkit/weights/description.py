"""A model's description: all that is known of it besides its weights.

It comes from a file of another format, or is what vitkit itself wrote beside the weights.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from vitkit.data import Preprocessing
from vitkit.data.preprocessing import Interpolation
from vitkit.models import ModelConfig, config_from, config_to_dict
from vitkit.system.private import public
from vitkit.weights import licenses
from vitkit.weights.classifier import Activation, Classifier

LARGEST_SIDE = 16384  # pixels of an image's side; positions of so many patches fit into no memory


@dataclass(frozen=True)
class Hints:
    """What the user says of a model, because its file does not say it or another is wanted."""

    image: tuple[int, ...] = ()
    """Height and width of the images in pixels, or one side of a square. If the position table can
    be for this size, it is; else positions are resampled to it. Default: what the file says, or a
    square table."""
    heads: int | None = None
    """Attention heads, if the file does not say how many. Default: those of the published model of
    the same width."""
    pool: Literal["token", "gap", "corner"] | None = None
    """What the head reads, if the file does not say: the class token, the mean of the patches, or
    the first patch (big_vision's pool_type "0"). Default: what such files usually mean."""
    statistics: Literal["imagenet", "half", "clip"] | None = None
    """Mean and standard deviation that images are normalised with: ImageNet's (DeiT, MAE, DINO,
    torchvision), 0.5, or CLIP's. Default: the file's, or a guess, which is printed."""
    resize: int | None = None
    """Side in pixels that images are resized to before the centre is cut out, such as 256.
    Default: the file's, or the usual one."""
    crop: Literal["centre", "whole"] | None = None
    """centre: the shorter side is resized, and the centre cut out. whole: both sides are resized at
    once to the model's size, as Google's models have it. Default: the file's, or the usual one."""
    interpolation: Interpolation | None = None
    """How images are resized. Default: the file's, or the usual one."""
    labels: Path | None = None
    """Text file with the name of a class on each line, in the order of the model's outputs.
    Default: the file's names, ImageNet-1k's for 1,000 classes, or numbers."""

    def __post_init__(self):
        image = self.image
        if isinstance(image, int):
            image = (image,)
        if not isinstance(image, tuple | list):
            raise ValueError(
                f"the size of images is {image!r}; give one side in pixels, or height and width"
            )
        image = tuple(image)
        if len(image) == 1:
            image *= 2
        if len(image) not in (0, 2) or any(side < 1 for side in image):
            raise ValueError(
                f"the size of images is {image}; give one side in pixels, or height and width"
            )
        if image and max(image) > LARGEST_SIDE:
            raise ValueError(
                f"the size of images is {image}; a side has at most {LARGEST_SIDE:,} pixels"
            )
        if self.heads is not None and self.heads < 1:
            raise ValueError(f"heads is {self.heads}; it must be at least 1")
        if self.crop == "whole" and self.resize:
            raise ValueError(
                f'resize is {self.resize}, but nothing is cut out if crop is "whole"; leave out one '
                "of the two"
            )
        object.__setattr__(self, "image", image)


class Description(NamedTuple):
    """A model whose weights are not read yet."""

    config: ModelConfig
    preprocessing: Preprocessing
    labels: tuple[str, ...] | None = None
    """Names of the classes, if the file gives them."""
    notes: tuple[str, ...] = ()
    """What was assumed, one sentence each."""
    activation: Activation = "softmax"
    """How its logits become probabilities."""
    origin: dict | None = None
    """Where it came from, if the file says so."""
    guess: str = ""
    """What nothing in the file says and a wrong answer is costly of, such as the mean that images
    are normalised with: a sentence that also says how to say it. It is the first that is told."""
    objective: dict | None = None
    """Settings of its pre-training that no tensor tells, if the file says them."""


def to_json(classifier: Classifier) -> dict:
    """A model as vitkit describes it; `from_json` reads that."""
    return {
        "model": config_to_dict(classifier.model.config),
        "preprocessing": classifier.preprocessing.to_json(),
        "labels": list(classifier.labels),
        "activation": classifier.activation,
        "origin": public(classifier.origin),
        "license": licenses.to_json(classifier.license),
    }


def from_json(values: dict) -> Description:
    """The way back. Raises ValueError for values that describe no model."""
    try:
        config = config_from(values["model"])
        preprocessing = Preprocessing.from_json(values["preprocessing"])
        # Classes without names are numbered by the reader, once the weights have shown that there
        # are so many. files/comment.py writes None for the numbers.
        names = values["labels"]
        if names is None:
            names = ()
        if not isinstance(names, list | tuple):
            raise ValueError(f"labels is {repr(names)[:100]}; it is a list of names")
        labels = tuple(map(str, names))
        origin = values["origin"]
        if not isinstance(origin, dict):
            raise ValueError(f"origin is {repr(origin)[:100]}; it is an object")
    except KeyError as error:
        raise ValueError(f"it does not describe a vitkit model: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"it does not describe a vitkit model: {error}") from error
    if labels and len(labels) != config.classes:
        raise ValueError(f"it names {len(labels)} classes for a head of {config.classes}")
    activation = values.get("activation") or _recorded_activation(origin)
    return Description(config, preprocessing, labels, (), activation, origin)


def _recorded_activation(origin: dict) -> Activation:
    """The activation of a model that was saved before descriptions named it: that of the loss which
    trained it."""
    objective = origin.get("objective")
    if isinstance(objective, dict) and objective.get("loss") == "sigmoid":
        return "sigmoid"
    return "softmax"
