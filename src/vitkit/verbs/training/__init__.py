"""Verbs that train, or plan it."""
