"""Evaluations as pages."""
