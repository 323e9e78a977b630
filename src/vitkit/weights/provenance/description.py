"""A model's description: all that is known of it besides its weights.

It comes from a file of another format, or is what vitkit itself wrote beside the weights.
"""

from typing import NamedTuple

from vitkit.data import Preprocessing
from vitkit.models import ModelConfig, config_from, config_to_dict
from vitkit.system.storage.private import public
from vitkit.weights.activation import Activation
from vitkit.weights.classifier import Classifier
from vitkit.weights.provenance.licenses import license_to_json


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
        "license": license_to_json(classifier.license),
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
