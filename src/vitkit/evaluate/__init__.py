"""Evaluators: callables that count over batches and yield (name, value)."""

from vitkit.evaluate.accuracy import accuracy
from vitkit.evaluate.labels import align

__all__ = ["accuracy", "align"]
