"""Verbs for data sets."""
