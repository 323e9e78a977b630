"""Queries, keys and values whose biases a file of Hugging Face's leaves out (`qkv_bias: false`)."""

from collections.abc import Sequence

from vitkit.models import ViTConfig
from vitkit.weights.conversion.rules import Rule, rule
from vitkit.weights.conversion.transforms import THREE
from vitkit.weights.files import Tensors, lazy_zeros

QKV = ("query", "key", "value")  # as Transformers 4 calls them


def have_biases(tensors: Tensors, layers: Sequence[str]) -> bool:
    """Whether any of these layers, by the ends of their names, has a bias."""
    ends = tuple(f".{layer}.bias" for layer in layers)
    return any(name.endswith(ends) for name in tensors)


def with_biases(tensors: Tensors, layers: Sequence[str]) -> tuple[Tensors, list[str]]:
    """Tensors in which these layers all have a bias; zeros where there is none, and then a note."""
    ends = tuple(f".{layer}.weight" for layer in layers)
    missing = {}
    for name, lazy in tensors.items():
        bias = name.removesuffix("weight") + "bias"
        if name.endswith(ends) and bias not in tensors:
            missing[bias] = lazy_zeros(*lazy.shape[:1])
    notes = []
    if missing:
        notes.append(
            f"biases: {len(missing)} are not in the file, such as {min(missing)}, so zeros"
        )
    return tensors | missing, notes


def with_qkv_biases(tensors: Tensors, layers: Sequence[str]) -> tuple[Tensors, list[str]]:
    """Tensors in which queries, keys and values all have a bias, or none of them has, and a note: where
    some have (all but the keys in DINOv3), the others get zeros."""
    if not have_biases(tensors, layers):
        return tensors, []
    return with_biases(tensors, layers)


def qkv_rules(config: ViTConfig, theirs: Sequence[str]) -> list[Rule]:
    """The rules of the three layers, which are one of vitkit's: their weights, and their biases if the
    model has them."""
    kinds = ["weight"]
    if config.qkv_bias:
        kinds.append("bias")
    table = []
    for kind in kinds:
        parts = [f"{name}.{kind}" for name in theirs]
        table.append(rule(f"blocks.{{i}}.attention.qkv.{kind}", *parts, transform=THREE))
    return table
