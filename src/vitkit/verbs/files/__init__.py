"""Verbs for files of models, and lists of models."""
