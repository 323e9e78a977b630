"""What is known of a model before its weights are read: from a file of another format, or as vitkit
itself wrote it."""

from typing import NamedTuple

from vitkit.data import Preprocessing
from vitkit.models import ModelConfig, config_from, plain
from vitkit.weights.classifier import Activation, Classifier, check_labels
from vitkit.weights.labels import numbered


class Hints(NamedTuple):
    """What the user says because the file does not."""

    image: tuple[int, int] | None = None
    """Height and width in pixels that the position table is made for."""
    heads: int | None = None
    """Attention heads."""


class Description(NamedTuple):
    """A model that is about to be read."""

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
    """vitkit's own description of a model, which `from_json` reads."""
    return {
        "model": plain(classifier.model.config),
        "preprocessing": classifier.preprocessing.to_json(),
        "labels": list(classifier.labels),
        "activation": classifier.activation,
        "origin": classifier.origin,
    }


def from_json(values: dict) -> Description:
    """A model as vitkit described it. Raises ValueError for what describes none."""
    try:
        config = config_from(values["model"])
        preprocessing = Preprocessing.from_json(values["preprocessing"])
        if values["labels"] is None:  # too many for the comment of an archive
            labels = numbered(config.classes)
        else:
            check_labels(values["labels"])
            labels = tuple(map(str, values["labels"])) or numbered(config.classes)
        origin = dict(values["origin"])
    except KeyError as error:
        raise ValueError(f"it does not describe a vitkit model: {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"it does not describe a vitkit model: {error}") from error
    if len(labels) != config.classes:
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
