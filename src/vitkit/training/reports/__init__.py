"""Runs as pages."""
