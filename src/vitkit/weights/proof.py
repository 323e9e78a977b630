"""Write a model in another format, and prove that the result is equivalent."""

from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitkit.data import Preprocessing, open_image
from vitkit.models import Model
from vitkit.system.console.messages import say_detail
from vitkit.system.console.text import printable
from vitkit.system.errors import BadSettings, BadWeights, Unsupported, VitkitError
from vitkit.system.storage.files import temporary_folder
from vitkit.weights.classifier import Classifier, has_head_of_zeros
from vitkit.weights.destination import check_destination, write_model
from vitkit.weights.files.directory import open_weights
from vitkit.weights.files.hub import fetch
from vitkit.weights.formats import cannot, format_of, formats_for, names, recognise
from vitkit.weights.formats.format import Format
from vitkit.weights.parts import is_as_its_library_saves
from vitkit.weights.store import load

PROBES = 4  # number of random images
TOLERANCE = 1e-4
"""Largest accepted difference between the logits of two models."""


class Proof(NamedTuple):
    """The measurements after writing a model in another format."""

    path: Path
    differences: tuple[str, ...]
    """What the other library computes slightly differently."""
    library: str
    """Name and version of the other library; empty if it is not installed."""
    largest: float | None
    """Largest difference between its logits and vitkit's, on random images; None without the library."""
    scale: float
    """Largest logit, to compare the difference with."""
    pixels: float | None = None
    """Largest difference between pixels prepared by the library and by vitkit, in levels of 255; None
    without the library, or if the files contain no preprocessing."""


class LibraryReading(NamedTuple):
    """Comparison of a directory of another library, read by vitkit and by that library."""

    library: str
    """Name and version of the library."""
    largest: float
    """Largest difference between its logits and vitkit's, on random images."""
    scale: float
    """Largest logit, to compare the difference with."""


def check_reading(source: Path | str, tolerance: float = TOLERANCE) -> LibraryReading | None:
    """Compare a model directory as vitkit reads it with the library that wrote it, in float32.

    None if there is nothing to compare: a file of weights, or a pickle, which other libraries do not open
    here; a directory that vitkit wrote; a model in a user's class; a head of zeros; a library that is not
    installed, or that cannot open it.

    Raises VitkitError if logits differ by more than the tolerance. Then vitkit misreads the model, or
    config.json belongs to other weights.
    """
    path = fetch(source)
    if not path.is_dir():
        return None
    opened = open_weights(path)
    format = recognise(opened.tensors)
    if format is None or format.directory is None or format.open_elsewhere is None:
        return None
    if not opened.config or opened.described:
        return None
    # No other library may unpickle an untrusted file for this comparison
    if "safetensors" not in opened.path.name or not is_as_its_library_saves(opened):
        return None
    classifier = load(path, quiet=True)
    if has_head_of_zeros(classifier.model):
        return None
    try:
        reading = _compare_with_library(classifier, classifier.model, format, path)
    except Unsupported as error:
        say_detail(f"not compared with {format.library}'s own reading of {source}: {error}")
        return None
    if reading is None or not isfinite(reading.largest):
        return None
    if reading.largest > tolerance * max(reading.scale, 1):
        raise BadWeights(
            f"vitkit and {reading.library} read {source} differently: the logits differ by "
            f"{reading.largest:.1e} (the largest is {reading.scale:.3g}). Either its config.json belongs to "
            "other weights, or vitkit misreads it: then please report it with its config.json. "
            "`approximate` converts it as vitkit reads it"
        )
    return reading


def convert_weights(
    classifier: Classifier,
    path: Path | str,
    to: str,
    approximate: bool = False,
    tolerance: float = TOLERANCE,
) -> Proof:
    """Write `classifier` to `path` in a format: huggingface and native (a directory), google
    (.npz), timm (a directory for its hub, or a file), torchvision (a file: .safetensors, or .pth).

    The result is checked first, in a temporary folder beside `path`: the saved model is opened again,
    every tensor must be equal to the bit, and if the other library is installed its logits are compared
    with vitkit's.

    Raises VitkitError for a model that the format cannot express; and, unless `approximate`, if the other
    library would compute something slightly differently, or if its logits differ by more than the
    tolerance or are not finite. Then nothing is written.
    """
    path = Path(path)
    format, differences = _format_for(classifier, to, approximate)
    check_destination(classifier, format, path)

    # Check it in a temporary folder
    with temporary_folder(path) as folder:
        proof = _prove(_with_random_head(classifier), format, folder / path.name)
    proof = proof._replace(path=path, differences=tuple(differences))
    if not approximate:
        _check_logits(proof, to, tolerance)

    # Then write it
    write_model(classifier, format, path)
    return proof


def _with_random_head(classifier: Classifier) -> Classifier:
    """The classifier; a head of zeros gets random numbers, as its logits would not depend on other
    weights."""
    if not has_head_of_zeros(classifier.model):
        return classifier
    model = deepcopy(classifier.model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in model.head.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(0.1 * torch.randn(layer.weight.shape, generator=generator))
    return replace(classifier, model=model)


def _prove(classifier: Classifier, format: Format, path: Path) -> Proof:
    """Write a model, open it again, and compare it with the original."""
    write_model(classifier, format, path)
    reopened = load(path, quiet=True)

    # Equal tensors, to the bit
    state = reopened.model.state_dict()
    for name, tensor in classifier.model.state_dict().items():
        if not torch.equal(tensor.cpu(), state[name]):
            raise RuntimeError(
                f"{name} did not come back to the bit from {path}; "
                "this is a defect of vitkit, please report it"
            )

    # Equal logits in the other library, on random images that are already normalised
    try:
        reading = _compare_with_library(classifier, reopened.model, format, path)
    except Unsupported as error:
        raise Unsupported(
            f"{error}, so nothing is written; `to='native'` writes every model"
        ) from error
    library = ""
    largest = None
    if reading:
        library = reading.library
        largest = reading.largest
        scale = reading.scale
    else:
        _, scale = _compare_logits(classifier, reopened.model, reopened.model)

    # Equal pixels by the preprocessing in the saved files, if there is one
    pixels = None
    with suppress(ImportError):
        if format.pixels_elsewhere and path.is_dir() and reopened.model.config.channels == 3:
            photographs = _photographs(classifier.preprocessing)
            pixels = max(_pixels(image, classifier, path, format) for image in photographs)

    return Proof(path, (), library, largest, scale, pixels)


def _compare_with_library(
    classifier: Classifier, ours: Model, format: Format, path: Path
) -> LibraryReading | None:
    """Compare the logits of a model with those that the format's library computes from the same files; None
    without the library. Raises Unsupported if the library refuses them."""
    if format.open_elsewhere is None:
        return None
    try:
        elsewhere = format.open_elsewhere(classifier, path)
        if elsewhere is None:
            return None
        largest, scale = _compare_logits(classifier, ours, elsewhere.model.float())
    except ImportError:  # it is not installed
        return None
    except VitkitError:  # of vitkit's own model
        raise
    except Exception as error:
        # Any exception of another library, for files or images that it does not support
        reason = printable(f"{type(error).__name__}: {error}".splitlines()[0], 200)
        raise Unsupported(f"{format.library} refuses the model ({reason})") from error
    return LibraryReading(elsewhere.library, largest, scale)


def _compare_logits(classifier: Classifier, ours: Model, theirs: nn.Module) -> tuple[float, float]:
    """The largest difference between the logits of two models on random images of the classifier's sizes,
    and the largest logit of vitkit's; NaN if any is."""
    generator = torch.Generator().manual_seed(0)
    differences = []
    scales = []
    theirs = theirs.eval()
    for size in _probed_sizes(classifier):
        images = torch.randn(PROBES, ours.config.channels, *size, generator=generator)
        with torch.inference_mode():
            logits = ours(images)
            differences.append(float((theirs(images) - logits).abs().max()))
        scales.append(float(logits.abs().max()))
    return _largest(differences), _largest(scales)


def _probed_sizes(classifier: Classifier) -> list[tuple[int, int]]:
    """The size that a model is for; and two others, for which positions are resampled, if it reads images
    in their own aspect ratios."""
    config = classifier.model.config
    sizes = [config.image]
    if classifier.preprocessing.is_native:
        height, width = classifier.preprocessing.patch
        sizes += [(2 * height, 5 * width), (3 * config.image[0], height)]
    return sizes


def _largest(numbers: list[float]) -> float:
    """The largest number; NaN if any is NaN."""
    return float(np.max(numbers))


def _check_logits(proof: Proof, to: str, tolerance: float) -> None:
    """Raise VitkitError if the other library's logits differ from vitkit's, or are not finite."""
    if not isfinite(proof.scale):
        raise BadWeights("the model's logits on random images are not finite; nothing is written")
    if proof.largest is None or proof.largest <= tolerance:  # NaN is not
        return
    raise BadWeights(
        f"as {to} the logits of {proof.library} differ by {proof.largest:.1e} (the largest logit "
        f"is {proof.scale:.3g}), more than {tolerance:g}, so nothing is written; write it "
        "nevertheless with `approximate`"
    )


def _format_for(classifier: Classifier, to: str, approximate: bool) -> tuple[Format, list[str]]:
    """The format, and what its library computes differently. Raises VitkitError if it is refused."""
    if to not in names():
        raise BadSettings(f"no format {to!r}; there are {', '.join(names())}")
    config = classifier.model.config
    rule = classifier.preprocessing.rule
    format = format_of(to, config, rule)
    others = ", ".join(format.name for format in formats_for(config, rule))
    if getattr(config, "segments", False) and to != "native":
        raise Unsupported(
            f"{to} has no model that classifies every pixel by the patches of several blocks; there is one in "
            "native, and `vitkit.export` writes .onnx and .xml for other programs"
        )
    if format is not None and rule not in format.images:
        raise Unsupported(
            f"{to} has no place for images in their own aspect ratios, which this model reads: its library "
            f"would stretch or crop them. There is one in {others}; `crop='centre'` makes a model that crops"
        )
    if problems := cannot(to, config, rule):
        missing = ", ".join(dict.fromkeys(problems))  # some occur twice
        raise Unsupported(f"{to} has no place for {missing}; there is one in {others}")
    assert format is not None  # otherwise `cannot` lists the whole model
    differences = format.differs(config)
    if differences and not approximate:
        raise Unsupported(
            f"{to} would compute another function ({'; '.join(differences)}); "
            "write it nevertheless with `approximate`"
        )
    return format, differences


def _photographs(preprocessing: Preprocessing) -> list[Image.Image]:
    """Images of smooth random colours. If images are resized and cropped, the margins beside the crop have
    all remainders when divided by 4, because libraries round half of an odd margin differently."""
    colours = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    shorter_side = preprocessing.resize or max(preprocessing.size)
    by_remainder: dict[int, int] = {}
    for width in range(400, 800):
        margin = int(shorter_side * width / 300) - preprocessing.size[1]
        by_remainder.setdefault(margin % 4, width)
    small = Image.fromarray(colours)
    return [small.resize((width, 300), Image.Resampling.BICUBIC) for width in by_remainder.values()]


def _pixels(image: Image.Image, classifier: Classifier, path: Path, format: Format) -> float:
    """The largest difference between one image's pixels, in levels of 255."""
    assert format.pixels_elsewhere is not None
    theirs = format.pixels_elsewhere(path, image)
    preprocessing = classifier.preprocessing
    picture = open_image(np.asarray(image), "probe")
    ours = preprocessing.normalise(classifier.batch([picture]).cpu())

    if theirs.shape != ours.shape:  # pixels cannot be compared, so the largest possible difference
        return 255.0
    largest = (theirs - ours).abs().amax((0, 2, 3))  # of each channel, normalised
    levels = largest * torch.tensor(preprocessing.std) * 255
    return float(levels.max())
