"""Verbs that classify images."""
