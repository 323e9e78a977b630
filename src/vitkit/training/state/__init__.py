"""Checkpoints: written completely or not at all, found again, continued exactly."""
