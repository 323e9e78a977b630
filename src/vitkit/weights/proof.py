"""Writing a model in another format, with the proof that it is the same model there."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from vitkit.data import open_image
from vitkit.models import ModelConfig
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats import cannot, format_of, formats_for, names
from vitkit.weights.formats.format import Elsewhere, Format
from vitkit.weights.own import check_own_weights
from vitkit.weights.store import load
from vitkit.weights.writing import write_model

PROBES = 4  # images


class Proof(NamedTuple):
    """What was measured after writing."""

    path: Path
    differences: tuple[str, ...]
    """What the other library computes a little differently."""
    library: str
    """Its name and version; empty if it is not installed."""
    largest: float | None
    """Largest difference between its logits and vitkit's, on random images; None without the
    library."""
    scale: float
    """Largest logit, for comparison."""
    pixels: float | None = None
    """Largest difference between the pixels that its preprocessing and vitkit's make of an image,
    in levels of 255; None without the library, or if the files describe no preprocessing."""


def convert(classifier: Classifier, path: Path | str, to: str, approximate: bool = False) -> Proof:
    """Write `classifier` to `path` in a format: huggingface and native (a directory), google
    (.npz), timm (a directory for its hub, or a file), torchvision (a file: .safetensors, or .pth).

    What is written is opened again: every tensor must come back to the bit, and if the other
    library is installed its logits are compared with vitkit's. Raises ValueError for what the
    format cannot express, and, unless `approximate`, for what the other library would compute a
    little differently.
    """
    path = Path(path)
    check_own_weights(classifier.model)
    format, differences = _format_for(classifier.model.config, to, approximate)
    write_model(classifier, format, path)

    # The same tensors, to the bit
    reopened = load(path, quiet=True)
    _check_bits(classifier, reopened, path)

    # The same logits in the other library
    elsewhere = _open_elsewhere(classifier, path, format)
    images = _probes(classifier.model.config)
    library = ""
    largest = None
    with torch.inference_mode():
        logits = reopened.model(images)
        if elsewhere:
            library = elsewhere.library
            their_logits = elsewhere.model.eval()(images)
            largest = float((their_logits - logits).abs().max())

    return Proof(
        path=path,
        differences=tuple(differences),
        library=library,
        largest=largest,
        scale=float(logits.abs().max()),
        pixels=_pixels(classifier, path, format),
    )


def _format_for(config: ModelConfig, to: str, approximate: bool) -> tuple[Format, list[str]]:
    """The format, and what its library computes differently. Raises ValueError for what must not be
    written."""
    if to not in names():
        raise ValueError(f"no format {to!r}; there are {', '.join(names())}")
    if problems := cannot(to, config):
        others = ", ".join(format.name for format in formats_for(config))
        raise ValueError(f"{to} has no place for {', '.join(problems)}; there is one in {others}")
    format = format_of(to, config)
    differences = format.differs(config)
    if differences and not approximate:
        raise ValueError(
            f"{to} would compute another function ({'; '.join(differences)}); "
            "write it all the same with --approximate"
        )
    return format, differences


def _check_bits(written: Classifier, reopened: Classifier, path: Path) -> None:
    """Raises RuntimeError unless all tensors are the same."""
    state = reopened.model.state_dict()
    for name, tensor in written.model.state_dict().items():
        if not torch.equal(tensor.cpu(), state[name]):
            raise RuntimeError(
                f"{name} did not come back to the bit from {path}; "
                "this is a defect of vitkit, please report it"
            )


def _probes(config: ModelConfig) -> torch.Tensor:
    """Random images (B, C, H, W), normalised."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(PROBES, config.channels, *config.image, generator=generator)


def _open_elsewhere(classifier: Classifier, path: Path, format: Format) -> Elsewhere | None:
    """The written model in the format's library; None if there is no library, or it is not
    installed."""
    if format.open_elsewhere is None:
        return None
    try:
        return format.open_elsewhere(classifier, path)
    except ImportError:
        return None


def _pixels(classifier: Classifier, path: Path, format: Format) -> float | None:
    """The largest difference between the library's preprocessing and vitkit's of one image, in
    levels of 255.

    The library's is what the written files describe; None if they describe none.
    """
    if format.pixels_elsewhere is None or not path.is_dir():
        return None
    if classifier.model.config.channels != 3:
        return None

    # Random colours made smooth, as in a photograph, in a size that both have to resize and crop
    colours = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    image = Image.fromarray(colours).resize((400, 300), Image.Resampling.BICUBIC)
    try:
        theirs = format.pixels_elsewhere(path, image)
    except ImportError:
        return None
    preprocessing = classifier.preprocessing
    picture = open_image(np.asarray(image), "probe")
    ours = preprocessing.normalise(classifier.batch([picture]).cpu())

    if theirs.shape != ours.shape:  # no pixel can be compared: the largest difference there is
        return 255.0
    largest = (theirs - ours).abs().amax((0, 2, 3))  # of each channel, normalised
    levels = largest * torch.tensor(preprocessing.std) * 255
    return float(levels.max())
