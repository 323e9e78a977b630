"""What identifies the features of a model: its weights, its settings, its preprocessing."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from vitkit.system.errors import Unsupported
from vitkit.weights.classifier import Classifier


def add_weights(digest: "hashlib._Hash", weights: Mapping[str, Tensor]) -> None:
    """Add weights to a digest: their names, dtypes, shapes and numbers."""
    for name, weight in weights.items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def feature_settings(classifier: Classifier) -> dict:
    """What determines features besides the weights: configuration and preprocessing."""
    if not hasattr(classifier.model, "config"):  # another runtime computes it
        raise Unsupported(
            "an exported file gives logits alone; the features, what the head reads, are computed by "
            "PyTorch, from the model that it was exported from"
        )
    config = asdict(classifier.model.config)
    for name in ("classes", "head_bias"):  # of the head
        config.pop(name, None)
    if config.get("read_blocks") == 1:  # as every model had it before there was a choice
        del config["read_blocks"]
    return {
        "model": type(classifier.model).__name__,
        "config": config,
        "preprocessing": classifier.preprocessing.to_json(),
    }
