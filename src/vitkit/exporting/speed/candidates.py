"""What `vitkit bench` sets side by side: a classifier in every runtime and precision of this machine.

Legend: B batch, K classes, h w pixels of what the model gets.
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
    PACKAGES,
    Export,
    Runtime,
    RuntimeName,
    compiled,
    described,
    eager,
    missing_packages,
    write,
)
from vitkit.runtimes.exported import PictureRuntime, Weights
from vitkit.system.console.messages import say
from vitkit.system.errors import BadSettings, Unsupported, WorkerDied
from vitkit.system.machine import Precision, has_bfloat16
from vitkit.weights import Activation, Classifier

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Contender:
    """A model as one runtime computes it in one precision."""

    library: str
    precision: str
    compute: Callable[[np.ndarray], np.ndarray]
    """Prepared images, uint8 (B, 3, h, w) -> (B, K)."""
    agreement: Agreement | None = None
    """Its answers beside PyTorch's in float32; None if there is nothing to compare them with."""
    file: Path | None = None
    """The exported file; None if PyTorch computes the model itself."""
    is_calibrated: bool = False
    """Whether it is int8 whose ranges are fixed by images, where it need not be."""
    less: str = ""
    """Which work is left out, so that the answers are not the model's own: "8 merged"."""
    process: Isolated | None = None
    """The process that computes it; None if this one does."""

    @property
    def name(self) -> str:
        """The name of the contender: "OpenVINO int8"."""
        name = _name(self.library, self.precision, self.is_calibrated)
        if self.less:
            name += f", {self.less}"
        return name


def contenders(
    classifier: Classifier,
    trial: Trial,
    folder: Path,
    open_isolated: OpenFile,
    runtimes: Sequence[RuntimeName] = ("torch", "onnx", "openvino"),
    precisions: Sequence[Weights] = ("float32", "bfloat16", "int8"),
) -> Iterator[Contender]:
    """Each that this machine can have, exported into a folder, and tried; PyTorch's float32, which
    the others are compared with, is always the first. One whose library ends its process is left out,
    and a message says so.

    open_isolated: opens an exported file in a process of its own.

    Raises VitkitError, in its turn, for a runtime that cannot have the model.
    """
    exact = eager(classifier, CPU)
    yield _tried(exact, exact, "PyTorch", "float32", trial)
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
    """Whether a runtime computes in a precision on this machine, and nothing else has measured it."""
    if (library == "onnx" or library == "openvino") and missing_packages(
        Export(library, precision)
    ):
        return False
    if library == "torch" and precision == "float32":  # what the others are compared with
        return False
    if precision == "bfloat16":
        return library != "onnx" and has_bfloat16(CPU)
    return precision == "float32" or library in PACKAGES


def _of_pytorch(
    classifier: Classifier, exact: Runtime, library: str, precision: Precision, trial: Trial
) -> Contender:
    """The model as PyTorch computes it, compiled or not."""
    if library == "compiled":
        runtime = compiled(classifier, CPU, precision)
        return _tried(exact, runtime, "PyTorch compiled", precision, trial)
    runtime = eager(classifier, CPU, precision)
    return _tried(exact, runtime, "PyTorch", precision, trial)


def _name(library: str, precision: str, is_calibrated: bool) -> str:
    """What a contender that does all the work is called."""
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
) -> Contender:
    """The model as a file. Raises WorkerDied if the process that computes it ends."""
    name = f"{wanted.to}-{wanted.precision}"
    if wanted.calibrated:
        name += "-calibrated"
    path = folder / f"{name}{ENDINGS[wanted.to]}"
    exported = described(classifier, wanted)
    write(classifier, exported, wanted, path, calibration_images(exported, wanted, trial))
    process = open_isolated(path, library)
    tried = _tried(exact, process.runtime, LIBRARIES[library], wanted.precision, trial, path)
    return replace(tried, is_calibrated=wanted.calibrated, process=process)


def _tried(
    exact: Runtime,
    runtime: Runtime,
    library: str,
    precision: Weights,
    trial: Trial,
    file: Path | None = None,
) -> Contender:
    """A contender, with how far it agrees with the exact runtime."""
    agreement = agree(exact, runtime, trial, precision)
    return Contender(library, precision, runtime.logits, agreement, file)


def is_good(contender: Contender, activation: Activation) -> bool:
    """Whether a contender's answers are as near the model's as those of an exported file must be."""
    if contender.agreement is None:
        return False
    least = LEAST[contender.precision]
    return wrong(contender.agreement, contender.precision, activation, least) == ""


def with_less_work(
    classifier: Classifier, trial: Trial, merge: Sequence[int], sure: Sequence[float]
) -> Iterator[Contender]:
    """PyTorch's float32 with so many tokens merged in every block; and with exits that answer from
    such a probability on, fitted on the trial's images for calibration. Each is tried.

    Raises VitkitError for a model that can do neither, and for too few images.
    """
    exact = eager(classifier, CPU)
    changed = {f"{r} merged": partial(merging, classifier, r) for r in merge}
    if sure:
        images, _ = prepared_images(classifier.preprocessing, trial.for_calibration)
        exits = fit_exits(classifier, images)
        changed |= {f"exits at {each}": partial(exiting, classifier, exits, each) for each in sure}
    for less, make in changed.items():
        tried = _tried(exact, eager(make(), CPU), "PyTorch", "float32", trial)
        yield replace(tried, less=less)


def of_exported(process: Isolated) -> Contender:
    """An exported file in a process of its own, whose answers are not compared."""
    file = process.runtime
    own = file.file if isinstance(file, PictureRuntime) else file
    return Contender(own.library, own.computed_in, file.logits, file=process.path, process=process)


def of_timm(name: str, classifier: Classifier) -> Contender:
    """Another model to compare with, as timm computes it in float32, with random weights: they do not
    change its speed. Raises VitkitError for a name that timm does not know, or without timm."""
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

    return Contender(f"timm {name}", "float32", compute)
