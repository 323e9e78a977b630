"""A model's description: all that is known of it besides its weights.

It comes from a file of another format, or is what vitkit itself wrote beside the weights.
"""

from typing import NamedTuple

from vitkit.data import Preprocessing
from vitkit.models import ModelConfig, config_from, config_to_dict
from vitkit.weights.classifier import Activation, Classifier, check_labels


class Hints(NamedTuple):
    """What the user says because the file does not."""

    image: tuple[int, int] | None = None
    """Height and width, in pixels, of the images that the position table is for."""
    heads: int | None = None
    """Attention heads."""


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


def to_json(classifier: Classifier) -> dict:
    """A model as vitkit describes it; `from_json` reads that."""
    return {
        "model": config_to_dict(classifier.model.config),
        "preprocessing": classifier.preprocessing.to_json(),
        "labels": list(classifier.labels),
        "activation": classifier.activation,
        "origin": classifier.origin,
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
        check_labels(names)
        labels = tuple(map(str, names))
        origin = dict(values["origin"])
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
