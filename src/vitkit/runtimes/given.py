"""The runtime for a model that a command or call names, by its arguments `runtime`, `precision` and `device`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.runtimes.exported import is_exported, takes_pictures
from vitkit.system.console.messages import say, say_detail
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings
from vitkit.system.functions.arguments import pick_precision
from vitkit.system.functions.steps import IMAGES, step
from vitkit.weights import Hints, classifier_of

if TYPE_CHECKING:
    import torch

    from vitkit.runtimes.exported import FileRuntime, PictureRuntime
    from vitkit.runtimes.libraries import RuntimeName
    from vitkit.runtimes.runtime import Runtime
    from vitkit.system.machine import Precision, PrecisionChoice
    from vitkit.weights import Classifier


def any_runtime_of_file(
    name: str, hints: Hints, runtime: "RuntimeName", precision: "PrecisionChoice", device: str
) -> "FileRuntime | PictureRuntime":
    """The runtime for an exported file, without PyTorch; it takes prepared images, or whole pictures one at a
    time. Raises VitkitError for settings that an exported file determines itself."""
    from vitkit.runtimes.libraries import open_model_file

    check_file_settings(name, hints, device)
    opened = open_model_file(Path(name), runtime, precision)
    report_differences(Path(name), opened)
    return opened


def check_file_settings(name: str, hints: Hints, device: str) -> None:
    """Raises VitkitError for settings that an exported file determines itself, and for another device than the
    CPU."""
    if hints != Hints():
        raise BadSettings(
            f"{name} is an exported file, which contains its size, preprocessing and labels; give such "
            "settings to `vitkit.export`"
        )
    if device not in ("auto", "cpu"):
        raise BadSettings(f"`device` is {device}; exported files are computed on the CPU here")


def report_differences(file: Path, opened: "FileRuntime | PictureRuntime") -> None:
    """Print how an exported file differs from the model beside it: it is of an earlier model, or merges
    tokens."""
    from vitkit.runtimes.onnx_of_run import is_of_an_earlier_model

    name = str(file)
    if is_of_an_earlier_model(file):
        say(
            f"{name} was exported from another model than {file.parent} has now: "
            f"{step('export', file.parent, output=file)} writes it again"
        )
    merged = opened.exported.merged
    if merged:
        say(
            f"{name} merges at most {counted(merged, 'token')} in every block, so its answers differ "
            "slightly from the model's"
        )


def runtime_of_file(
    name: str, hints: Hints, runtime: "RuntimeName", precision: "PrecisionChoice", device: str
) -> "FileRuntime":
    """The runtime for an exported file, for callers that prepare images in batches. Raises VitkitError for a file
    that takes whole pictures."""
    opened = batch_runtime_of_file(name, hints, runtime, precision, device)
    check_file_has_one_answer(name, opened)
    return opened


def batch_runtime_of_file(
    name: str, hints: Hints, runtime: "RuntimeName", precision: "PrecisionChoice", device: str
) -> "FileRuntime":
    """The runtime for an exported file that gives an output for an image, or for every pixel. Raises VitkitError
    as `runtime_of_file`."""
    opened = any_runtime_of_file(name, hints, runtime, precision, device)
    if takes_pictures(opened):
        raise BadSettings(
            f"{name} prepares images itself, one at a time, and here they are prepared in batches; "
            "export the model again, without `preprocessing`"
        )
    return opened


def check_file_has_one_answer(name: str, opened: "FileRuntime | PictureRuntime") -> None:
    """Raises VitkitError for an exported file that classifies every pixel."""
    if opened.exported.segments:
        raise BadSettings(
            f"{name} classifies every pixel, and this needs one output for the image; {step('segment', name, IMAGES)} "
            "writes its masks"
        )


def runtime_of_run(
    model: "str | Classifier",
    hints: Hints,
    runtime: "RuntimeName",
    precision: "PrecisionChoice",
    device: str,
) -> "FileRuntime | None":
    """The runtime of the ONNX file that a run keeps for predictions without PyTorch; None if it has none for this
    model, or if the arguments require PyTorch."""
    from vitkit.runtimes.onnx_of_run import kept_runtime

    if not isinstance(model, str | Path) or hints != Hints():
        return None
    opened = kept_runtime(Path(model), runtime, precision, device)
    if opened is not None:
        say_detail(
            f"computed in float32 by ONNX Runtime from {opened.path}, which starts sooner than "
            "PyTorch (`runtime='torch'`)"
        )
    return opened


def precision_of(
    runtime: "RuntimeName", choice: "PrecisionChoice", device: "torch.device"
) -> "Precision":
    """The precision to compute a model in; a choice for "auto" is printed. ONNX Runtime supports float32
    only."""
    if runtime == "onnx" and choice == "auto":
        return "float32"
    return pick_precision(choice, device)


def runtime_of_model(
    classifier: "Classifier", runtime: "RuntimeName", precision: "Precision", device: str
) -> "Runtime":
    """The runtime for a model. "auto" is the fastest one that `vitkit bench` has found for it on this machine,
    which is printed, or PyTorch without such a measurement."""
    from vitkit.runtimes.libraries import open_file
    from vitkit.runtimes.pytorch import compiled, eager
    from vitkit.system.machine import pick_device

    if runtime == "auto" and pick_device(device).type == "cpu":
        from vitkit.runtimes.fastest import remembered
        from vitkit.runtimes.identity import digest_of_classifier

        found = remembered(classifier, precision)
        if found is not None:
            fastest, path = found
            say(f"computed by {fastest}; `runtime='torch'` is PyTorch")
            return replace(open_file(path), made_of=digest_of_classifier(classifier))
    if runtime in ("auto", "torch"):
        return eager(classifier, device, precision)
    if runtime == "compiled":
        return compiled(classifier, device, precision)
    from vitkit.runtimes.opening import open_runtime

    return open_runtime(classifier, runtime, precision, device)


def classifier_on(
    name: "str | Classifier",
    hints: Hints,
    runtime: "RuntimeName",
    precision: "PrecisionChoice",
) -> "Classifier":
    """A model, or an exported file, as a Classifier that this runtime computes. An exported file computes in
    its own precision; one in float32 also in bfloat16 if that is requested."""
    from vitkit.runtimes.opening import open_runtime
    from vitkit.runtimes.pytorch import of_file, on_runtime

    if isinstance(name, str) and is_exported(name):
        if precision == "float32":
            precision = "auto"
        return of_file(any_runtime_of_file(name, hints, runtime, precision, "cpu"))
    classifier = classifier_of(name, hints)
    if runtime in ("auto", "torch"):
        return classifier
    return on_runtime(classifier, open_runtime(classifier, runtime, precision))
