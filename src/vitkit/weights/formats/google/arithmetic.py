"""What Google's code would compute with weights that were trained with another arithmetic.

Google's code is written in JAX, which vitkit does not need, and its arithmetic is fixed. So vitkit
itself computes as it does: the same weights in a model with Google's GELU, eps and ResNet.
"""

import torch

from vitkit.models import ModelConfig, build
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats.format import Elsewhere


def as_google_computes(classifier: Classifier, config: ModelConfig) -> Elsewhere:
    """The classifier's weights in a model of the configuration that Google's code has."""
    with torch.device("meta"):
        model = build(config)
    model.load_state_dict(classifier.model.state_dict(), assign=True)
    return Elsewhere("the same weights with the arithmetic of Google's code", model)
