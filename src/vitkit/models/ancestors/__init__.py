"""ancestors."""
