"""Verbs for a classifier that learns, and unlearns, photograph by photograph."""
