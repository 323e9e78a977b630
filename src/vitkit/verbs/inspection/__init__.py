"""Verbs that look into models."""
