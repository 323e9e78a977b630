"""The functions of the commands that train a model, or plan its training."""
