"""Evaluators: callables that count over batches and yield (name, value)."""

from vitkit.evaluate.accuracy import accuracy
from vitkit.evaluate.labels import align
from vitkit.evaluate.neighbours import leave_one_out

__all__ = ["accuracy", "align", "leave_one_out"]
