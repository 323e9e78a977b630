"""What computes a model's answers, as --runtime and the model's name say."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.deploy.exported import is_exported
from vitkit.weights.said import Hints

if TYPE_CHECKING:
    from vitkit.deploy.opening import RuntimeName
    from vitkit.deploy.runtimes import Runtime
    from vitkit.system.machine import PrecisionChoice
    from vitkit.weights import Classifier


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


def classifier_on(
    name: str, hints: Hints, runtime: "RuntimeName", precision: "PrecisionChoice", quiet: bool
) -> "Classifier":
    """A model by its name, or an exported file, as a Classifier that this runtime computes: for
    commands that take one. An exported file computes in its own precision, unless that is float32
    and bfloat16 is asked for."""
    from vitkit.deploy.on_runtime import of_file, on_runtime
    from vitkit.deploy.opening import open_runtime
    from vitkit.weights import load_as

    if is_exported(name):
        if precision == "float32":
            precision = "auto"
        return of_file(runtime_of_file(name, hints, runtime, precision, "cpu"))
    classifier = load_as(name, hints, quiet=quiet)
    if runtime in ("auto", "torch"):
        return classifier
    return on_runtime(classifier, open_runtime(classifier, runtime, precision))
