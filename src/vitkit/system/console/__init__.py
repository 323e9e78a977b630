"""Console output while a command works: messages, progress bars, tables."""
