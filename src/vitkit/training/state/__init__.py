"""Checkpoints: written whole, found again, continued exactly."""
