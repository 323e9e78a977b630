"""Digests that identify the features of a model: its weights, its settings, its preprocessing."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from vitkit.system.errors import Unsupported
from vitkit.weights.classifier import Classifier


def add_weights(digest: "hashlib._Hash", weights: Mapping[str, Tensor]) -> None:
    """Add weights to a digest: their names, dtypes, shapes and values."""
    for name, weight in weights.items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def feature_settings(classifier: Classifier) -> dict:
    """Everything besides the weights that determines features: configuration and preprocessing."""
    if not hasattr(classifier.model, "config"):  # a model of another runtime
        raise Unsupported(
            "an exported file gives logits alone; the features, which the head reads, are computed by "
            "PyTorch from the model that it was exported from"
        )
    config = asdict(classifier.model.config)
    for name in ("classes", "head_bias"):  # settings of the head
        config.pop(name, None)
    if config.get("read_blocks") == 1:  # omitted for compatibility with older digests
        del config["read_blocks"]
    return {
        "model": type(classifier.model).__name__,
        "config": config,
        "preprocessing": classifier.preprocessing.to_json(),
    }
