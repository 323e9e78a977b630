"""`vitkit convert`: a model in another library's format."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.system.console.text import as_word
from vitkit.verbs import Model, ModelHints
from vitkit.weights import Hints

NOT_COMPARED = {
    "native": "only vitkit reads this format",
    "google": "Google's code computes what vitkit computes",
    "huggingface": "Transformers is not installed; pip install transformers",
    "timm": "timm is not installed; pip install timm",
    "torchvision": "torchvision is not installed; pip install torchvision",
}
"""Why there may be no other library's logits to compare a converted model with, by format."""


@dataclass
class Convert:
    """Write a model in another library's format, and check that it is the same model there."""

    source: Model
    dest: Annotated[Positional[Path], arg(metavar="DEST")]
    """What to write: a directory (huggingface, native, timm) or a file (.npz, .safetensors,
    .pth)."""
    to: Annotated[str, arg(metavar="FORMAT")]
    """The format: huggingface, timm, google, torchvision or native."""
    approximate: bool = False
    """Write the model even if the other library computes a little differently, such as with another
    form of the GELU, or its logits differ by more than the tolerance."""
    tolerance: float = 1e-4
    """Largest difference of the logits there that counts as the same. Beyond it the status is 1,
    and nothing is written."""
    hints: ModelHints = field(default_factory=Hints)


def convert(command: Convert) -> int:
    """Write a model in another format, and print how far its logits differ there."""
    from vitkit import weights
    from vitkit.weights import is_somebodys, license_text

    check_tolerance(command.tolerance)

    classifier = weights.load_as(command.source, command.hints)
    proof = weights.convert(
        classifier, command.dest, command.to, command.approximate, command.tolerance
    )
    print(f"wrote {proof.path}; read back, every tensor is the same to the bit")
    if proof.path.is_dir() and is_somebodys(proof.path / "README.md"):
        print("kept README.md, which is your own: no model card was written")
    if classifier.license and classifier.license.text:
        text = license_text(proof.path)
        print(f"with it the text of its licence, {classifier.license.called}, in {text}")
    if classifier.pretraining and not proof.path.is_dir():
        names = sorted({name.split(".")[0] for name in classifier.pretraining})
        print(
            f"left out: what pre-training added ({', '.join(names)}), which a model directory keeps"
        )
    if classifier.unknown is not None and not proof.path.is_dir():
        print("left out: the limits for unknown images, which a model directory keeps")
    elif classifier.unknown is not None and proof.library:
        print(f"only vitkit says of images that they are unknown: {proof.library} names a class")
    for difference in proof.differences:
        print(f"computed differently there: {difference}")
    if proof.largest is None:
        print(f"logits were not compared: {NOT_COMPARED[command.to]}")
    else:
        print(
            f"logits differ by {proof.largest:.1e} at most from those of {proof.library} "
            f"(the largest logit is {proof.scale:.3g})"
        )
    if proof.pixels is not None:
        print(
            f"test images after the preprocessing of {proof.library} differ by "
            f"{proof.pixels:.2g} of 255 levels at most (it rounds and crops in its own way: "
            "docs/weights.md)"
        )
    print(f"next: vitkit compare {as_word(command.source)} {as_word(proof.path)} IMAGE...")
    return 0


def check_tolerance(tolerance: float) -> None:
    """Raises ValueError for a tolerance that is no number from 0 on."""
    if not tolerance >= 0:  # NaN too
        raise ValueError(f"--tolerance is {tolerance}; it is a number from 0 on")
