"""Measurements inside a model and their figures: from a model and images to arrays, and to a
drawing."""
