"""Models as files: loaded from any format, saved for every library, and proved to be the same
there."""

from vitkit.weights.adopt import adopt
from vitkit.weights.classifier import Classifier
from vitkit.weights.create import create
from vitkit.weights.licenses import License
from vitkit.weights.proof import Proof, convert
from vitkit.weights.store import load, load_as, load_for, save

__all__ = [
    "Classifier",
    "License",
    "Proof",
    "adopt",
    "convert",
    "create",
    "load",
    "load_as",
    "load_for",
    "save",
]
