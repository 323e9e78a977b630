"""Verbs that measure a model."""
