"""Verbs that answer images."""
