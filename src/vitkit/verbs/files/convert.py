"""A model in another library's format."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.system.console.text import as_word
from vitkit.system.errors import BadSettings
from vitkit.verbs.arguments import Model, ModelHints, word_of
from vitkit.verbs.definition import result, verb
from vitkit.verbs.made_model import MadeModel
from vitkit.weights import (
    Classifier,
    Hints,
    Proof,
    Reading,
    check_reading,
    is_somebodys,
    license_text,
    load_as,
)
from vitkit.weights import convert as converted
from vitkit.weights import headless as without_head

NOT_COMPARED = {
    "native": "only vitkit reads this format",
    "google": "Google's code computes what vitkit computes",
    "huggingface": "Transformers is not installed; pip install transformers",
    "timm": "timm is not installed; pip install timm",
    "torchvision": "torchvision is not installed; pip install torchvision",
}
"""Why there may be no other library's logits to compare a converted model with, by format; a format
need not be here."""


@dataclass(frozen=True)
class Convert:
    """Write a model in another library's format, and check that it is the same model there."""

    source: Model
    dest: Annotated[Positional[Path], arg(metavar="DEST")]
    """Directory (huggingface, native, timm) or file (.npz, .safetensors, .pth) to write."""
    to: Annotated[str, arg(metavar="FORMAT")]
    """The format: huggingface, timm, google, torchvision or native."""
    headless: bool = False
    """Write only the encoder, without the head, for a program that has a head of its own."""
    approximate: bool = False
    """Write the model even if the other library computes something slightly differently, such as
    another form of the GELU, or if the logits differ by more than the tolerance."""
    tolerance: float = 1e-4
    """Largest difference between the logits that counts as the same. If the difference is larger,
    the exit status is 1, and nothing is written."""
    hints: ModelHints = field(default_factory=Hints)


@result
@dataclass(frozen=True)
class Converted(MadeModel):
    """A model in another format, with the proof that it is the same there."""

    settings: Convert
    classifier: Classifier
    """What was converted."""
    proof: Proof
    reading: Reading | None = None
    """How the source is read here, beside its library's own reading; None where nothing could be compared."""

    @property
    def made(self) -> str:
        """Where the model was written."""
        return str(self.proof.path)

    @property
    def path(self) -> Path:
        """The file or directory that was written."""
        return self.proof.path

    def shown(self) -> Iterator[str]:
        """The output: what was written, what was left out, and how much the logits differ."""
        proof = self.proof
        yield f"wrote {proof.path}; read back, every tensor is the same to the bit"
        if proof.path.is_dir() and is_somebodys(proof.path / "README.md"):
            yield "kept README.md, which is your own: no model card was written"
        # What of the model goes with it, and what does not
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
                f"read as {self.reading.library} reads {self.settings.source}: logits differ by "
                f"{self.reading.largest:.1e} at most"
            )
        for difference in proof.differences:
            yield f"computed differently there: {difference}"
        if proof.largest is None:
            why = NOT_COMPARED.get(self.settings.to, "no other library here opens this format")
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
        if self.settings.hints == Hints():  # else the source alone is another model
            source = word_of(self.settings.source)
            yield f"next: vitkit compare {source} {as_word(proof.path)} IMAGE..."
        else:
            yield f"next: vitkit predict {as_word(proof.path)} IMAGE..."


@verb
def convert(settings: Convert) -> Converted:
    """Write a model in another library's format, and prove that it is the same there: every tensor read
    back to the bit, and the logits of the other library where it is installed.

    A directory of another library is first compared with that library's own reading of it.

    Raises ValueError for what the format cannot express, unless `approximate`, and for logits that
    differ by more than the tolerance.
    """
    check_tolerance(settings.tolerance)
    classifier = settings.source
    reading = None
    if not isinstance(classifier, Classifier):
        classifier = load_as(classifier, settings.hints)
        if settings.hints == Hints() and not settings.approximate:
            reading = check_reading(settings.source)
    if settings.headless:
        classifier = without_head(classifier)
    proof = converted(
        classifier, settings.dest, settings.to, settings.approximate, settings.tolerance
    )
    return Converted(settings, classifier, proof, reading)


def check_tolerance(tolerance: float) -> None:
    """Raises ValueError if a tolerance is not a number from 0 on."""
    if not tolerance >= 0:  # NaN too
        raise BadSettings(f"`tolerance` is {tolerance}; it is a number from 0 on")
