"""Untrusted files of weights: the names and shapes of their tensors, before any tensor is read.

safetensors, NumPy's .npz (no object is unpickled), and PyTorch's own files through its restricted
unpickler.
"""

from vitkit.weights.files.content import FLOATS, Lazy, Parts, Tensors, joined, lazy_zeros
from vitkit.weights.files.directory import Opened, load_state_dict, open_weights, write_tensors
from vitkit.weights.files.pytorch import OPTIMISERS
from vitkit.weights.files.safetensors import write_safetensors

__all__ = [
    "FLOATS",
    "OPTIMISERS",
    "Lazy",
    "Opened",
    "Parts",
    "Tensors",
    "joined",
    "lazy_zeros",
    "load_state_dict",
    "open_weights",
    "write_safetensors",
    "write_tensors",
]
