"""Weights for another task: classes, sizes, channels."""
