"""Models that classify every pixel: the class of each pixel of an image, at the image's own size.

Legend: K classes, (h', w') pixels of what the model gets, h w pixels of the image.
"""

import numpy as np
import torch
import torch.nn.functional as F

from vitkit.data import Picture
from vitkit.runtimes.libraries import RuntimeName
from vitkit.runtimes.pytorch import Eager
from vitkit.runtimes.runtime import Runtime
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.functions.steps import DATA, MODEL, step
from vitkit.system.machine import PrecisionChoice, pick_device, pick_precision
from vitkit.weights import Classifier

FILE_OF = {"onnx": ".onnx", "openvino": ".xml"}  # the ending of the file that a library computes


def segments(classifier: Classifier) -> bool:
    """Whether a model classifies every pixel."""
    config = getattr(classifier.model, "config", None)
    return bool(getattr(config, "segments", False))


def check_segments(classifier: Classifier, name: str) -> None:
    """Raises Unsupported for a model that has one output for an image."""
    if not segments(classifier):
        trains = step("finetune", MODEL, DATA, masks="masks/")
        raise Unsupported(
            f"{name} has one output for an image, not a class for every pixel; {trains} trains one"
        )


def check_runtime_of_pixels(runtime: RuntimeName, name: str) -> None:
    """Raises BadSettings for a library that computes a model that classifies every pixel only from a file."""
    if runtime not in ("auto", "torch"):
        export = step("export", name, output=f"model{FILE_OF.get(runtime, '.onnx')}")
        raise BadSettings(
            f"`runtime={runtime!r}` computes exported files of such a model: {export}, and give that file"
        )


def map_runtime(
    classifier: Classifier, device: str = "auto", precision: PrecisionChoice = "float32"
) -> Eager:
    """A model that classifies every pixel, as PyTorch computes it, for inference."""
    own_device = pick_device(device)
    deployed = classifier.for_inference().to(own_device)
    return Eager(deployed, pick_precision(precision, own_device).precision)


def logit_maps(runtime: Runtime, picture: Picture) -> np.ndarray:
    """The logits of a whole picture at the size that the model reads it in, float32 (K, h', w'). Raises
    BadImage, and Unsupported for a model whose preprocessing crops."""
    preprocessing = runtime.preprocessing
    if not preprocessing.is_native and (preprocessing.rule != "square" or preprocessing.resize):
        raise Unsupported(
            f"the model's preprocessing ({preprocessing}) cuts off parts of an image, so their pixels would "
            'have no class: give it the rule "native"'
        )
    prepared = preprocessing.array(picture)
    [maps] = runtime.logits(prepared[None])
    return maps


def class_map(runtime: Runtime, picture: Picture) -> np.ndarray:
    """The class of every pixel of a picture, uint8 (h, w): its logits are interpolated to the picture's size.
    Raises BadImage."""
    return likeliest(logit_maps(runtime, picture), picture.size)


def likeliest(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The class with the highest logit at every pixel of another (height, width): float32 (K, h', w') ->
    uint8 (h, w). One class is interpolated at a time: all of many classes would not fit in memory. Those that are
    nowhere the likeliest are left out."""
    logits = torch.from_numpy(maps)
    if size == maps.shape[1:]:
        return logits.argmax(0).to(torch.uint8).numpy()
    highest = torch.full(size, -torch.inf)
    classes = torch.zeros(size, dtype=torch.uint8)
    for number in _possible(logits):
        plane = logits[number]
        own = F.interpolate(plane[None, None], size, mode="bilinear", antialias=False)[0, 0]
        is_higher = own > highest
        classes[is_higher] = number
        highest = torch.where(is_higher, own, highest)
    return classes.numpy()


def _possible(logits: torch.Tensor) -> list[int]:
    """The classes that may have the highest logit somewhere between the pixels of maps, (K, h', w').

    Between four neighbours the highest logit is at least the mean of those of the classes that are highest at one of
    them. A class that is below this mean at all four is below it everywhere between.
    """
    if not logits.isfinite().all():
        return list(range(len(logits)))
    repeats = [max(1, 3 - side) for side in logits.shape]
    logits = logits.repeat(1, *repeats[1:])  # at least two rows and two columns
    highest = logits.argmax(0)
    rounding = 1e-5 * logits.abs().max()
    sides = (slice(None, -1), slice(1, None))
    corners = [(rows, columns) for rows in sides for columns in sides]
    is_possible = torch.zeros(len(logits), dtype=torch.bool)
    for rows, columns in corners:
        at_corner = logits[:, rows, columns]  # (K, h' - 1, w' - 1)
        of_highest = [at_corner.gather(0, highest[None, *corner]) for corner in corners]
        mean = torch.cat(of_highest).mean(0)
        is_possible |= (at_corner >= mean - rounding).flatten(1).any(1)
    return torch.nonzero(is_possible).flatten().tolist()
