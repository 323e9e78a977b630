"""What is measured inside a model, and drawn: from a model and images to arrays, and to a figure."""
