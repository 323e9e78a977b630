"""What computes a model's answers, as --runtime and the model's name say."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.weights.said import Hints

if TYPE_CHECKING:
    from vitkit.deploy.opening import RuntimeName
    from vitkit.deploy.runtimes import Runtime
    from vitkit.system.machine import PrecisionChoice


def runtime_of_file(
    name: str, hints: Hints, runtime: "RuntimeName", precision: "PrecisionChoice", device: str
) -> "Runtime":
    """What computes an exported file, without PyTorch. Raises ValueError for what cannot be said of
    such a file: all of it is inside."""
    from vitkit.deploy.opening import open_prepared

    if hints != Hints():
        raise ValueError(
            f"{name} is an exported file, which has its size, preprocessing and labels inside; say such "
            "things to vitkit export"
        )
    if device not in ("auto", "cpu"):
        raise ValueError(f"--device is {device}; exported files are computed on the CPU here")
    return open_prepared(Path(name), runtime, precision)
