"""Models as files: a Classifier, saved and loaded whole."""

from vitkit.weights.store import Classifier, load, save

__all__ = ["Classifier", "load", "save"]
