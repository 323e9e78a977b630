"""Layers whose biases a file of Hugging Face's leaves out (`qkv_bias: false`)."""

from vitkit.weights.files import Tensors, lazy_zeros


def with_biases(tensors: Tensors, layers: tuple[str, ...]) -> tuple[Tensors, list[str]]:
    """Tensors in which these layers, by the ends of their names, all have a bias; zeros where there
    is none, and then a note."""
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
