"""Opening the runtime of a classifier or an exported file. For another library than PyTorch, a classifier is exported
to a temporary file."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from vitkit.runtimes.exported import KEY, FileRuntime
from vitkit.runtimes.graphs.writing import ENDINGS, Export, check_packages, described, write
from vitkit.runtimes.identity import digest_of_classifier
from vitkit.runtimes.libraries import RuntimeName, check_onnx_precision, open_file, open_model_file
from vitkit.runtimes.pytorch import (
    FeaturesOnRuntime,
    answering_features,
    check_answer,
    compiled,
    eager,
)
from vitkit.runtimes.runtime import Runtime
from vitkit.system.errors import Unsupported
from vitkit.system.machine import Precision, PrecisionChoice, pick_device, pick_precision
from vitkit.weights import Classifier


def open_runtime(
    model: Path | str | Classifier,
    runtime: RuntimeName = "auto",
    precision: PrecisionChoice | None = None,
    device: str = "auto",
) -> Runtime:
    """Open the runtime for the logits of a Classifier, or of an exported file (.onnx or .xml).

        runtime = open_runtime("model.onnx")
        logits = runtime.logits(images)  # uint8 (B, 3, h, w) -> float32 (B, K), both numpy's

    runtime: "auto" is PyTorch for a Classifier, and for a file the library that it was written for. For
        another library, a Classifier is exported to a temporary file, which takes some ten seconds.
    precision: of the matrix products; by default float32 for a Classifier, and for a file the precision in its
        description. OpenVINO computes files in bfloat16 too.

    Raises VitkitError for a file that the library cannot compute, or that vitkit did not write.
    """
    if isinstance(model, str | Path):
        return open_model_file(Path(model), runtime, precision or "auto")
    precision = precision or "float32"
    if runtime == "compiled":
        return compiled(model, device, precision)
    if runtime == "onnx" or runtime == "openvino":
        return _exported_temporarily(model, runtime, precision)
    return eager(model, device, precision)


def _exported_temporarily(
    classifier: Classifier,
    library: Literal["onnx", "openvino"],
    precision: PrecisionChoice = "float32",
) -> FileRuntime:
    """The runtime of a classifier in another library, through a file that is deleted once it is open."""
    weights: Precision = "float32"
    if library == "openvino":
        weights = pick_precision(precision, pick_device("cpu")).precision
    else:
        check_onnx_precision(precision)
    wanted = Export(to=library, precision=weights)
    check_answer(classifier)
    check_packages(wanted)
    exported = described(classifier, wanted)
    with TemporaryDirectory(prefix="vitkit-") as folder:
        path = Path(folder) / f"{KEY}{ENDINGS[library]}"
        write(classifier, exported, wanted, path)
        return replace(open_file(path), made_of=digest_of_classifier(classifier))


def features_on(classifier: Classifier, runtime: RuntimeName, precision: Precision) -> Classifier:
    """A classifier whose features are computed by another runtime ("compiled", "onnx" or "openvino"),
    for use of its features only. Raises VitkitError as `open_runtime` does."""
    if classifier.preprocessing.values != "uint8":
        raise Unsupported(
            f"the model takes images in {classifier.preprocessing.values}, whose features only PyTorch "
            f"computes; leave out `runtime={runtime!r}`"
        )
    opened = open_runtime(answering_features(classifier), runtime, precision)
    computed_by = f"{runtime} {precision}"
    model = FeaturesOnRuntime(classifier, opened.logits, computed_by)
    return replace(classifier, model=model)  # type: ignore[arg-type]  # replaces the model for features
