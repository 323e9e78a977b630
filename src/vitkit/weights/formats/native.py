"""vitkit's own names, for every architecture that vitkit has.

Shapes alone do not tell what such a model computes, so these files always carry a description.
"""

import torch

from vitkit.models import ModelConfig, build
from vitkit.weights.classifier import Classifier, Description
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Format, Tidied
from vitkit.weights.formats.huggingface.processors import processor_json
from vitkit.weights.hints import Hints
from vitkit.weights.rules import Rule, rule

# The first weights of a Vision Transformer or hybrid, of a ResNet, and of LeNet.
FIRST = ("stem.project.weight", "root.conv.weight", "blocks.0.conv.weight")


def recognises(tensors: Tensors) -> bool:
    """Whether these are vitkit's names."""
    return any(name in tensors for name in FIRST)


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """Raises ValueError: this is called only if the file has no description."""
    raise ValueError(
        "it has vitkit's names but lacks the description that vitkit writes into its config.json"
    )


def rules(config: ModelConfig) -> list[Rule]:
    """Every tensor under its own name."""
    with torch.device("meta"):
        return [rule(name, name) for name in build(config).state_dict()]


def directory(classifier: Classifier) -> dict[str, dict]:
    """The JSON files of a model directory."""
    return {
        "config.json": {"model_type": "vitkit"},
        "preprocessor_config.json": processor_json(classifier.preprocessing),
    }


FORMAT = Format(
    name="native",
    kinds=("vit", "resnet", "lenet"),
    recognises=recognises,
    describe=describe,
    rules=rules,
    directory=directory,
    library="vitkit",
)
