"""Verbs that serve a model: over HTTP, and as a page."""
