"""Speed of a model on this machine in every runtime and precision: candidates measured in turns."""
