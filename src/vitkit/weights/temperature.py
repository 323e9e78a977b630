"""A temperature within the weights: logits divided by one number, without a place for it in any
format."""

import math
from copy import deepcopy
from dataclasses import replace

import torch
from torch import nn

from vitkit.weights.classifier import Classifier
from vitkit.weights.ownership import check_own_weights


@torch.no_grad()
def with_temperature(classifier: Classifier, temperature: float) -> Classifier:
    """A copy of the classifier whose logits are divided by the temperature, which is noted in its
    origin. The origin's metrics of probabilities are dropped, and the limits for unknown images, as
    they are another model's now.

    The division is in the weights of the head, exact to float32's rounding. So every format and
    every library, runtime and server has the same probabilities, and nobody can forget them. Raises
    ValueError for a temperature that is not positive, and for a model without a head.
    """
    if not math.isfinite(temperature) or temperature <= 0:
        raise ValueError(f"the temperature is {temperature}; it is a positive number")
    if not classifier.labels:
        raise ValueError("the model has no head, so it has no logits to divide by a temperature")
    check_own_weights(classifier.model)
    model = deepcopy(classifier.model)
    for layer in model.head.modules():  # DeiT's head has two of them
        if isinstance(layer, nn.Linear):
            layer.weight.div_(temperature)
            layer.bias.div_(temperature)
    whole = temperature * classifier.origin.get("temperature", 1.0)
    origin = {**classifier.origin, "temperature": whole}
    if metrics := origin.get("metrics"):
        origin["metrics"] = {name: text for name, text in metrics.items() if not _changes(name)}
    return replace(classifier, model=model, origin=origin, unknown=None)


def _changes(metric: str) -> bool:
    """Whether a temperature changes a metric: those of probabilities, not those of answers."""
    return metric.rpartition("/")[2] in ("calibration_error", "loss")
