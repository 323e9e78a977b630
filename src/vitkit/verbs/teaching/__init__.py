"""A classifier that learns, and unlearns, photograph by photograph."""
