"""PyTorch's exported programs, .pt2 files.

Reading one may run what its author has put there: it holds expressions that are evaluated, and may
hold pickles. So vitkit reads only what it has just written itself.
"""

from pathlib import Path

import numpy as np

from vitkit.runtimes.exported import KEY, Opened


def open_program(path: Path) -> Opened:
    """A .pt2 file that may be trusted. Raises ValueError for one that cannot be opened."""
    import torch

    extra = {KEY: ""}
    try:
        program = torch.export.load(path, extra_files=extra)
    except (RuntimeError, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} cannot be opened by PyTorch: {reason}") from error
    module = program.module()

    def compute(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(images)).numpy()

    return Opened(extra[KEY] or None, compute)
