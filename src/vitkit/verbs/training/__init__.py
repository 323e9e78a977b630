"""Verbs that train a model, or plan its training."""
