"""What is measured inside a model, a file a figure: arrays, not pictures."""
