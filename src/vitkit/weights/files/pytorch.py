"""PyTorch's own files (.pth, .pt, .bin), read by its restricted unpickler: nothing in them runs."""

import argparse
import pickle
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor

from vitkit.weights.files.lazy import DAMAGE, Lazy, Tensors

# Where training checkpoints keep the model. The first that is there counts: averages come first.
PARTS = ("state_dict_ema", "model_ema", "state_dict", "model", "teacher", "module", "net")


def read_pickle(file: Path) -> tuple[Tensors, str]:
    """The tensors of a file, and which part of a training checkpoint they were. Raises
    ValueError."""
    checkpoint = _unpickle(file)

    # A checkpoint may be wrapped several times: {"model": {"module": {name: tensor}}}
    wrapper = ""
    while isinstance(checkpoint, dict) and not _holds_tensors(checkpoint):
        parts = (part for part in PARTS if isinstance(checkpoint.get(part), dict))
        wrapper = next(parts, "")
        if not wrapper:
            break
        checkpoint = checkpoint[wrapper]

    if not _holds_tensors(checkpoint):
        raise ValueError(f"{file} cannot be loaded: it does not hold a state dict of tensors")
    tensors = {}
    for name, value in checkpoint.items():
        if isinstance(value, Tensor):
            tensors[str(name)] = _lazy(value)
    return tensors, wrapper


def _unpickle(file: Path) -> object:
    """What a file holds. Raises ValueError for anything but tensors and plain values, and for a
    damaged file."""
    try:
        # Training checkpoints carry their arguments, which do no harm. Whatever torch warns of
        # becomes our own sentence below.
        with (
            torch.serialization.safe_globals([argparse.Namespace]),
            warnings.catch_warnings(action="ignore"),
        ):
            return _load(file)
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        content = "more than tensors"
        if match:
            content = f"the Python object {match[1]}"
        raise ValueError(
            f"{file} cannot be loaded: it holds {content}, and vitkit runs no code from files; "
            "save its state dict as safetensors"
        ) from error
    except (*DAMAGE, AssertionError) as error:
        reason = repr(error)
        if str(error):
            reason = str(error).splitlines()[0]
        raise ValueError(f"{file} cannot be loaded: {reason}") from error


def _load(file: Path) -> object:
    """torch.load, mapped from the disk; except the format before PyTorch 1.6, which cannot be."""
    try:
        return torch.load(file, "cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
        return torch.load(file, "cpu", weights_only=True)


def _holds_tensors(value: object) -> bool:
    """Whether this is a state dict: a dictionary with a tensor in it."""
    return isinstance(value, dict) and any(isinstance(item, Tensor) for item in value.values())


def _lazy(tensor: Tensor) -> Lazy:
    dtype = str(tensor.dtype).removeprefix("torch.")
    # detach: a checkpoint may hold a Parameter, or a tensor that wants a gradient
    return Lazy(tuple(tensor.shape), dtype, read=tensor.detach)
