"""Writing tensors to one file, of the kind that its ending names."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.system.storage.files import whole
from vitkit.weights.files.comment import comment_of, write_comment
from vitkit.weights.files.lazy import KEY
from vitkit.weights.files.safetensors import write_safetensors


def write_tensors(file: Path, tensors: dict[str, Tensor], description: dict) -> None:
    """Write tensors, with vitkit's description of the model inside, to a .npz, .safetensors, .pth
    or .pt file.

    The file is there whole or not at all. Raises OSError, and ValueError for a description that
    does not fit.
    """
    if file.suffix == ".safetensors":
        with whole(file) as new:
            write_safetensors(new, tensors, {KEY: json.dumps(description)})
        return

    # The others are ZIP archives
    comment = comment_of(description)
    with whole(file) as new:
        if file.suffix == ".npz":
            with new.open("wb") as opened:
                np.savez(opened, **{name: tensor.numpy() for name, tensor in tensors.items()})
        else:
            # Clones: torch.save writes the whole storage of a tensor that is a part of another
            torch.save({name: tensor.clone() for name, tensor in tensors.items()}, new)
        write_comment(new, comment)


def load_state_dict(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .pth or .pt file that vitkit wrote, as another library reads
    them."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    return torch.load(file, weights_only=True)
