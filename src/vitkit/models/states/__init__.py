"""states."""
