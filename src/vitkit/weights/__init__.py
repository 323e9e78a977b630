"""Models as files: loaded from any format, saved for every library, and proved to be the same
there."""

from vitkit.weights.adopt import adopt
from vitkit.weights.classifier import Classifier
from vitkit.weights.proof import Proof, convert
from vitkit.weights.store import load, save

__all__ = ["Classifier", "Proof", "adopt", "convert", "load", "save"]
