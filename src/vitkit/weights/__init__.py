"""The bridge between formats: models loaded from any, saved for all, and proved to be the same."""

from vitkit.weights.adopt import adopt
from vitkit.weights.classifier import Classifier
from vitkit.weights.proof import Proof, convert
from vitkit.weights.store import load, save

__all__ = ["Classifier", "Proof", "adopt", "convert", "load", "save"]
