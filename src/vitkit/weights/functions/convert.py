"""`vitkit convert`: write a model in another library's format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Unpack

from vitkit.system.errors import BadSettings
from vitkit.system.functions.public import public
from vitkit.system.functions.steps import IMAGES, step
from vitkit.system.functions.types import PathLike
from vitkit.weights.adoption import headless as without_head
from vitkit.weights.classifier import Classifier
from vitkit.weights.destination import is_users_own
from vitkit.weights.given import ModelLike, classifier_of
from vitkit.weights.hints import Hints, Overrides, hints_of
from vitkit.weights.licenses import license_text
from vitkit.weights.made_model import MadeModel
from vitkit.weights.proof import LibraryReading, Proof, check_reading
from vitkit.weights.proof import convert_weights as converted

NOT_COMPARED = {
    "native": "only vitkit reads this format",
    "google": "Google's code computes what vitkit computes",
    "huggingface": "Transformers is not installed; pip install transformers",
    "timm": "timm is not installed; pip install timm",
    "torchvision": "torchvision is not installed; pip install torchvision",
}
"""Format -> reason why a converted model was not compared with another library's logits."""


@dataclass(frozen=True, repr=False)
class Converted(MadeModel):
    """A model in another format, and its comparison with the original."""

    source: str | Classifier
    """The model, as it was given."""
    format: str
    """The format that was written."""
    classifier: Classifier
    """The model that was converted."""
    proof: Proof
    reading: LibraryReading | None = None
    """Comparison of vitkit's logits of the source with those of the library that wrote it; None if they
    could not be compared."""
    overridden: bool = False
    """Whether overrides changed the source's model."""

    @property
    def made(self) -> str:
        """Where the model was written."""
        return str(self.proof.path)

    @property
    def path(self) -> Path:
        """The file or directory that was written."""
        return self.proof.path

    def shown(self) -> Iterator[str]:
        """The output: the file or directory, what was left out, and by how much logits differ."""
        proof = self.proof
        yield f"wrote {proof.path}; read back, every tensor is the same to the bit"
        if proof.path.is_dir() and is_users_own(proof.path / "README.md"):
            yield "kept README.md, which is your own: no model card was written"
        # Parts of the model that are included, and parts that are not
        classifier = self.classifier
        path = self.proof.path
        if classifier.license and classifier.license.text:
            text = license_text(path)
            yield f"with it the text of its licence, {classifier.license.called}, in {text}"
        if classifier.pretraining and not path.is_dir():
            names = sorted({name.split(".")[0] for name in classifier.pretraining})
            yield (
                f"left out: what pre-training added ({', '.join(names)}), which a model directory "
                "keeps"
            )
        if classifier.unknown is not None and not path.is_dir():
            yield "left out: the limits for unknown images, which a model directory keeps"
        elif classifier.unknown is not None and self.proof.library:
            yield f"only vitkit says of images that they are unknown: {self.proof.library} names a class"
        if self.reading is not None:
            yield (
                f"read as {self.reading.library} reads {self.source}: logits differ by "
                f"{self.reading.largest:.1e} at most"
            )
        for difference in proof.differences:
            yield f"computed differently there: {difference}"
        if proof.largest is None:
            why = NOT_COMPARED.get(self.format, "no other library here opens this format")
            yield f"logits were not compared: {why}"
        else:
            yield (
                f"logits differ by {proof.largest:.1e} at most from those of {proof.library} "
                f"(the largest logit is {proof.scale:.3g})"
            )
        if proof.pixels is not None:
            yield (
                f"test images after the preprocessing of {proof.library} differ by "
                f"{proof.pixels:.2g} of 255 levels at most (it rounds and crops in its own way: "
                "docs/weights.md)"
            )
        if self.overridden:  # the source alone is another model
            yield f"next: {step('predict', proof.path, IMAGES)}"
        else:
            yield f"next: {step('compare', self.source, proof.path, IMAGES)}"


@public
def convert(
    source: ModelLike,
    dest: PathLike,
    *,
    to: Annotated[str, "FORMAT"],
    headless: bool = False,
    approximate: bool = False,
    tolerance: float = 1e-4,
    **overrides: Unpack[Overrides],
) -> Converted:
    """Write a model in another library's format, and check that it is the same model there.

    Every tensor is read back and compared to the bit, and the logits are compared with those of the
    other library where it is installed. A directory of another library is first compared with that
    library's own reading of it.

    Args:
        source: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        dest: Directory (huggingface, native, timm) or file (.npz, .safetensors, .pth) to write.
        to: The format: huggingface, timm, google, torchvision or native.
        headless: Write only the encoder, without the head, for a program that has a head of its own.
        approximate: Write the model even if the other library computes something slightly differently,
            such as another form of the GELU, or if the logits differ by more than the tolerance.
        tolerance: Largest difference between the logits that counts as the same. If the difference is
            larger, the exit status is 1, and nothing is written.
        **overrides: What the file of the model does not say, or should be something else: `Overrides`.

    Raises:
        BadSettings: If there is no such format, or a setting has a value that is not allowed.
        BadWeights: If the model cannot be read, or its logits differ by more than the tolerance.
        Unsupported: If the format cannot express the model.
    """
    check_tolerance(tolerance)
    hints = hints_of(overrides)
    reading = None
    classifier = classifier_of(source, hints)
    if not isinstance(source, Classifier) and hints == Hints() and not approximate:
        reading = check_reading(source)
    if headless:
        classifier = without_head(classifier)
    proof = converted(classifier, dest, to, approximate, tolerance)
    return Converted(source, to, classifier, proof, reading, overridden=hints != Hints())


def check_tolerance(tolerance: float) -> None:
    """Raise BadSettings if a tolerance is not a number from 0 on."""
    if not tolerance >= 0:  # NaN too
        raise BadSettings(f"`tolerance` is {tolerance}; it is a number from 0 on")
