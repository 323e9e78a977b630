"""vitkit's own names: every architecture there is; what the numbers mean stands beside them."""

import torch

from vitkit.models import ModelConfig, build
from vitkit.weights.description import Description, Hints
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.rules import Rule, rule

NAME = "native"
HOLDS = ("vit", "resnet", "lenet")  # kinds of configurations


def recognises(tensors: Tensors) -> bool:
    """Whether these are vitkit's names."""
    return any(
        name in tensors
        for name in ("stem.project.weight", "root.conv.weight", "blocks.0.conv.weight")
    )


def tidy(tensors: Tensors) -> tuple[Tensors, list[str], str]:
    """As they are."""
    return tensors, [], ""


def describe(opened: Opened, hints: Hints) -> Description:
    """Nothing: shapes alone do not tell what a vitkit model computes."""
    raise ValueError(
        f"{opened.path} has vitkit's names but lacks the description that vitkit writes into its config.json"
    )


def rules(config: ModelConfig) -> list[Rule]:
    """Every name as it is."""
    with torch.device("meta"):
        return [rule(name, name) for name in build(config).state_dict()]


def cannot(config: ModelConfig) -> list[str]:
    """Nothing."""
    return []


def differs(config: ModelConfig) -> list[str]:
    """Nothing."""
    return []


def spell(tensors: dict, config: ModelConfig, layout: str = "") -> dict:
    """As they are."""
    return tensors
