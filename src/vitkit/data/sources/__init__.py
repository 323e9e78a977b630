"""A data set as a table of examples: opening it, its parts, its targets."""
