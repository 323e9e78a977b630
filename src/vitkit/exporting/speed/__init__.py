"""How fast a model is on this machine, in every runtime and precision: candidates measured in turns."""
