"""The candidates of `vitkit bench`: a classifier in every runtime and precision of this machine.

Legend: B batch, K classes, h w pixels of the model's input.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitkit.exporting.agreement import Agreement, Trial, agree
from vitkit.exporting.bounds import LEAST, wrong
from vitkit.exporting.exporting import calibration_images
from vitkit.exporting.speed.isolated import Isolated, OpenFile
from vitkit.prediction import exiting, fit_exits, merging, prepared_images
from vitkit.runtimes import (
    ENDINGS,
    LIBRARIES,
    Export,
    PictureRuntime,
    Runtime,
    RuntimeName,
    Weights,
    compiled,
    described,
    eager,
    missing_packages,
    write,
)
from vitkit.runtimes.libraries import PACKAGES
from vitkit.system.console.messages import say
from vitkit.system.errors import BadSettings, Unsupported, WorkerDied
from vitkit.system.machine import Precision, has_bfloat16
from vitkit.weights import Activation, Classifier

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Implementation:
    """A model in one runtime and one precision."""

    library: str
    precision: str
    compute: Callable[[np.ndarray], np.ndarray]
    """Prepared images, uint8 (B, 3, h, w) -> (B, K)."""
    agreement: Agreement | None = None
    """Agreement with PyTorch in float32; None if there is no comparison."""
    file: Path | None = None
    """The exported file; None if PyTorch computes the model."""
    is_calibrated: bool = False
    """Whether int8 ranges are fixed by calibration images although the runtime does not need that."""
    less: str = ""
    """The approximation, such as "8 merged"; "" if the candidate computes the whole model."""
    process: Isolated | None = None
    """The process that computes the candidate; None if it is this one."""

    @property
    def name(self) -> str:
        """The name of the candidate, such as "OpenVINO int8"."""
        name = _name(self.library, self.precision, self.is_calibrated)
        if self.less:
            name += f", {self.less}"
        return name


def implementations(
    classifier: Classifier,
    trial: Trial,
    folder: Path,
    open_isolated: OpenFile,
    runtimes: Sequence[RuntimeName] = ("torch", "onnx", "openvino"),
    precisions: Sequence[Weights] = ("float32", "bfloat16", "int8"),
) -> Iterator[Implementation]:
    """Yield every candidate that this machine supports, exported into a folder and checked. The first is
    PyTorch in float32, the reference of the others. A candidate whose library crashes its process is left
    out, with a log message.

    open_isolated: opens an exported file in a process of its own.

    Raises VitkitError, when its turn comes, for a runtime that does not support the model.
    """
    exact = eager(classifier, CPU)
    yield _compared(exact, exact, "PyTorch", "float32", trial)
    for library in runtimes:
        for precision in precisions:
            if not is_worth_measuring(library, precision):
                continue
            if library == "onnx" or library == "openvino":
                wanted = [Export(library, precision)]
                if library == "openvino" and precision == "int8" and trial.for_calibration:
                    wanted.append(Export(library, precision, calibrated=True))
                for each in wanted:
                    try:
                        yield _exported(
                            classifier, exact, library, each, trial, folder, open_isolated
                        )
                    except WorkerDied as error:
                        name = _name(LIBRARIES[library], precision, each.calibrated)
                        say(f"{name} is left out: {error}", WARNING)
            elif precision == "float32" or precision == "bfloat16":
                yield _of_pytorch(classifier, exact, library, precision, trial)


def is_worth_measuring(library: RuntimeName, precision: Weights) -> bool:
    """Whether a runtime supports a precision on this machine, and no other candidate measures the
    same."""
    if (library == "onnx" or library == "openvino") and missing_packages(
        Export(library, precision)
    ):
        return False
    if library == "torch" and precision == "float32":  # the reference is always measured
        return False
    if precision == "bfloat16":
        return library != "onnx" and has_bfloat16(CPU)
    return precision == "float32" or library in PACKAGES


def _of_pytorch(
    classifier: Classifier, exact: Runtime, library: str, precision: Precision, trial: Trial
) -> Implementation:
    """The model in PyTorch, compiled or not."""
    if library == "compiled":
        runtime = compiled(classifier, CPU, precision)
        return _compared(exact, runtime, "PyTorch compiled", precision, trial)
    runtime = eager(classifier, CPU, precision)
    return _compared(exact, runtime, "PyTorch", precision, trial)


def _name(library: str, precision: str, is_calibrated: bool) -> str:
    """The name of a candidate that computes the whole model."""
    name = f"{library} {precision}"
    if is_calibrated:
        name += ", calibrated"
    return name


def _exported(
    classifier: Classifier,
    exact: Runtime,
    library: RuntimeName,
    wanted: Export,
    trial: Trial,
    folder: Path,
    open_isolated: OpenFile,
) -> Implementation:
    """The model as an exported file. Raises WorkerDied if the process that computes it dies."""
    name = f"{wanted.to}-{wanted.precision}"
    if wanted.calibrated:
        name += "-calibrated"
    path = folder / f"{name}{ENDINGS[wanted.to]}"
    exported = described(classifier, wanted)
    write(classifier, exported, wanted, path, calibration_images(exported, wanted, trial))
    process = open_isolated(path, library)
    tried = _compared(exact, process.runtime, LIBRARIES[library], wanted.precision, trial, path)
    return replace(tried, is_calibrated=wanted.calibrated, process=process)


def _compared(
    exact: Runtime,
    runtime: Runtime,
    library: str,
    precision: Weights,
    trial: Trial,
    file: Path | None = None,
) -> Implementation:
    """A candidate, with its agreement with the exact runtime."""
    agreement = agree(exact, runtime, trial, precision)
    return Implementation(library, precision, runtime.logits, agreement, file)


def is_good(implementation: Implementation, activation: Activation) -> bool:
    """Whether a candidate's agreement is within the bounds of an exported file."""
    if implementation.agreement is None:
        return False
    least = LEAST[implementation.precision]
    return wrong(implementation.agreement, implementation.precision, activation, least) == ""


def with_less_work(
    classifier: Classifier, trial: Trial, merge: Sequence[int], sure: Sequence[float]
) -> Iterator[Implementation]:
    """Candidates in PyTorch and float32 with token merging, and with early exits fitted on the trial's
    calibration images. Each is compared with the whole model. merge: numbers of tokens merged in every
    block. sure: probabilities from which an exit is taken.

    Raises VitkitError for a model that supports neither, and for too few images.
    """
    exact = eager(classifier, CPU)
    changed = {f"{r} merged": partial(merging, classifier, r) for r in merge}
    if sure:
        images, _ = prepared_images(classifier.preprocessing, trial.for_calibration)
        exits = fit_exits(classifier, images)
        changed |= {f"exits at {each}": partial(exiting, classifier, exits, each) for each in sure}
    for less, make in changed.items():
        tried = _compared(exact, eager(make(), CPU), "PyTorch", "float32", trial)
        yield replace(tried, less=less)


def of_exported(process: Isolated) -> Implementation:
    """An exported file in a process of its own, without a comparison of its predictions."""
    file = process.runtime
    own = file.file if isinstance(file, PictureRuntime) else file
    return Implementation(
        own.library, own.computed_in, file.logits, file=process.path, process=process
    )


def of_timm(name: str, classifier: Classifier) -> Implementation:
    """A model of timm in float32 for comparison, with random weights, which do not affect its
    speed. Raises VitkitError if timm does not have a model of this name, or is not installed."""
    try:
        import timm
    except ImportError:
        raise Unsupported("timm is not installed; pip install timm") from None
    if not timm.is_model(name):
        raise BadSettings(f"timm has no model {name!r}; timm.list_models('vit*') lists them")
    model = timm.create_model(name, pretrained=False).eval()
    config: Any = model.pretrained_cfg
    size = config["input_size"][1:]
    if tuple(size) != tuple(classifier.preprocessing.size):
        raise BadSettings(
            f"timm's {name} takes {size[0]} x {size[1]} pixels, and the model "
            f"{classifier.preprocessing.size[0]} x {classifier.preprocessing.size[1]}"
        )

    def compute(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(images).float() / 127.5 - 1).numpy()

    return Implementation(f"timm {name}", "float32", compute)
